/* A small disk where none may be mounted: below $FAKE_DISK no more than $FAKE_DISK_BYTES can be written, and nothing can
 * be made or written once the file "read-only" stands there. LD_PRELOAD; made for tests of tpdpdash, no warranty.
 *
 * Counted as tmpfs counts: whole pages of the files below, names and folders cost nothing.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096L

static const char *disk(void) { return getenv("FAKE_DISK"); }

static int below(const char *path) {
    const char *root = disk();
    size_t length = root ? strlen(root) : 0;
    return length && strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int is_read_only(void) {
    char flag[PATH_MAX];
    return snprintf(flag, sizeof flag, "%s/read-only", disk()) < PATH_MAX && access(flag, F_OK) == 0;
}

static long pages_of(const char *folder) {
    long pages = 0;
    DIR *open_folder = opendir(folder);
    if (!open_folder) return 0;
    for (struct dirent *entry; (entry = readdir(open_folder));) {
        char path[PATH_MAX];
        struct stat about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= PATH_MAX) continue;
        if (lstat(path, &about) != 0) continue;
        if (S_ISDIR(about.st_mode)) pages += pages_of(path);
        else if (S_ISREG(about.st_mode)) pages += (about.st_size + PAGE - 1) / PAGE;
    }
    closedir(open_folder);
    return pages;
}

/* How many of these bytes have room behind the end of the file; all of them for files elsewhere. */
static size_t room(int descriptor, size_t count) {
    char link[64], path[PATH_MAX];
    struct stat about;
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if (!disk() || (length = readlink(link, path, sizeof path - 1)) < 0) return count;
    path[length] = 0;
    if (!below(path) || fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode)) return count;
    long in_last_page = (PAGE - about.st_size % PAGE) % PAGE;
    long free_pages = atol(getenv("FAKE_DISK_BYTES")) / PAGE - pages_of(disk());
    long left = in_last_page + (free_pages > 0 ? free_pages : 0) * PAGE;
    return left < (long)count ? (size_t)left : count;
}

ssize_t write(int descriptor, const void *data, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    size_t fits = room(descriptor, count);
    if (count && !fits) {
        errno = ENOSPC;
        return -1;
    }
    return real(descriptor, data, fits);
}

/* What the C library writes by itself, past the write above: Python's last words when it has lost its stderr. */
static int lost(FILE *stream) {
    if (room(fileno(stream), 1)) return 0;
    errno = ENOSPC;
    return 1;
}

#define REAL(NAME) ((__typeof__(&NAME))dlsym(RTLD_NEXT, #NAME))

int vfprintf(FILE *stream, const char *format, va_list values) {
    return lost(stream) ? -1 : REAL(vfprintf)(stream, format, values);
}

int fprintf(FILE *stream, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = vfprintf(stream, format, values);
    va_end(values);
    return written;
}

int __fprintf_chk(FILE *stream, int flag, const char *format, ...) {
    va_list values;
    (void)flag;
    va_start(values, format);
    int written = vfprintf(stream, format, values);
    va_end(values);
    return written;
}

int fputs(const char *text, FILE *stream) { return lost(stream) ? EOF : REAL(fputs)(text, stream); }

int fputc(int letter, FILE *stream) { return lost(stream) ? EOF : REAL(fputc)(letter, stream); }

size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    return lost(stream) ? 0 : REAL(fwrite)(data, size, count, stream);
}

static int refused(const char *path, int flags) {
    if (!(flags & (O_WRONLY | O_RDWR | O_CREAT)) || !below(path) || !is_read_only()) return 0;
    errno = EROFS;
    return 1;
}

#define OPEN(NAME)                                                         \
    int NAME(const char *path, int flags, ...) {                           \
        static int (*real)(const char *, int, mode_t);                     \
        va_list rest;                                                      \
        va_start(rest, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                      \
        if (!real) real = dlsym(RTLD_NEXT, #NAME);                         \
        return refused(path, flags) ? -1 : real(path, flags, mode);        \
    }
OPEN(open)
OPEN(open64)

int mkdir(const char *path, mode_t mode) {
    static int (*real)(const char *, mode_t);
    if (!real) real = dlsym(RTLD_NEXT, "mkdir");
    return refused(path, O_CREAT) ? -1 : real(path, mode);
}
