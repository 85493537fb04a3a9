/* A small stand-in for NVIDIA's libnvidia-ml.so.1, for tests: it answers what a scenario file says.
 *
 * Signatures and structure layouts after NVML's public API reference (as nvidia-ml-py 13 declares them).
 * FAKE_NVML_SCENARIO names the file, read at every init; without it: 8 x H100 SXM on NVSwitch, of which the last does
 * not report its power. Lines of the file:
 *     init CODE                 nvmlInit answers CODE
 *     driver TEXT               driver version
 *     gpu N KEY VALUE           a figure of GPU N (see set_figure), or KEY_error CODE for what it refuses
 * Build: gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { MAX_GPUS = 64, MAX_LINKS = 64, MAX_SLICES = 8, MAX_PROCESSES = 16, TEXT = 96 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };

typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_t;

typedef struct {
  int is_slice;
  char name[TEXT], uuid[TEXT], pci[32];
  u64 total, used, reserved;
  int handle_error, every_error;
  int name_error, uuid_error, pci_error, memory_error, memory_v2_error, util_error, power_error, limit_error, temp_error;
  int mig_mode, mig_mode_error;
  unsigned util, power, limit, temp, pcie_gen, pcie_width;
  int links, link_end, link_end_error, link_error, link_version, remote_type, remote_type_error;
  char peer[MAX_LINKS][32];
  int num_slices, num_processes, process_error;
  process_t processes[MAX_PROCESSES];
} gpu_t;

static gpu_t gpus[MAX_GPUS];
static gpu_t slices[MAX_GPUS][MAX_SLICES];
static int num_gpus, init_code;
static char driver[TEXT];

static void plain_gpu(int n) {
  gpu_t *g = &gpus[n];
  memset(g, 0, sizeof *g);
  snprintf(g->name, TEXT, "NVIDIA H100 80GB HBM3");
  snprintf(g->uuid, TEXT, "GPU-%08x-0000-4000-8000-%012x", 0x3ceb0000 + n * 0x1111, n);
  snprintf(g->pci, 32, "00000000:%02X:00.0", 0x1b + 0x10 * n);
  g->total = 85520809984ull; /* 81,559 MiB */
  g->used = 644874240ull;
  g->reserved = 572522496ull;
  g->power = 71000;
  g->limit = 700000;
  g->temp = 31;
  g->links = g->link_end = 18;
  g->link_end_error = INVALID_ARGUMENT;
  g->link_version = 6;
  g->remote_type = REMOTE_SWITCH;
  g->pcie_gen = 5;
  g->pcie_width = 16;
  for (int link = 0; link < MAX_LINKS; link++) snprintf(g->peer[link], 32, "00000000:%02X:00.0", 0xc0 + link % 4);
}

static void set_figure(gpu_t *g, int n, const char *key, const char *value) {
  long long number = atoll(value);
  char uuid[TEXT];
  int link;
#define TEXT_KEY(field) if (!strcmp(key, #field)) { snprintf(g->field, sizeof g->field, "%s", value); return; }
#define NUMBER_KEY(field) if (!strcmp(key, #field)) { g->field = number; return; }
  TEXT_KEY(name) TEXT_KEY(uuid) TEXT_KEY(pci)
  NUMBER_KEY(total) NUMBER_KEY(used) NUMBER_KEY(reserved) NUMBER_KEY(handle_error) NUMBER_KEY(every_error)
  NUMBER_KEY(name_error) NUMBER_KEY(uuid_error) NUMBER_KEY(pci_error) NUMBER_KEY(memory_error)
  NUMBER_KEY(memory_v2_error) NUMBER_KEY(util_error) NUMBER_KEY(power_error) NUMBER_KEY(limit_error)
  NUMBER_KEY(temp_error) NUMBER_KEY(mig_mode) NUMBER_KEY(mig_mode_error) NUMBER_KEY(util) NUMBER_KEY(power)
  NUMBER_KEY(limit) NUMBER_KEY(temp) NUMBER_KEY(pcie_gen) NUMBER_KEY(pcie_width) NUMBER_KEY(links)
  NUMBER_KEY(link_end) NUMBER_KEY(link_end_error) NUMBER_KEY(link_error) NUMBER_KEY(link_version)
  NUMBER_KEY(remote_type) NUMBER_KEY(remote_type_error) NUMBER_KEY(process_error)
  if (!strcmp(key, "peer") && sscanf(value, "%d %31s", &link, uuid) == 2) {
    snprintf(g->peer[link], 32, "%.31s", uuid);
    return;
  }
  if (!strcmp(key, "process") && g->num_processes < MAX_PROCESSES) {
    process_t *process = &g->processes[g->num_processes++];
    process->gpu_instance = process->compute_instance = -1;
    sscanf(value, "%u %llu", &process->pid, &process->used);
    return;
  }
  if (!strcmp(key, "mig") && g->num_slices < MAX_SLICES) {
    gpu_t *slice = &slices[n][g->num_slices++];
    memset(slice, 0, sizeof *slice);
    slice->is_slice = 1;
    g->mig_mode = 1;
    sscanf(value, "%95s %llu", slice->uuid, &slice->total);
    snprintf(slice->name, TEXT, "%.60s MIG 1g.10gb", g->name);
    return;
  }
  fprintf(stderr, "fake_nvml: unknown key %s\n", key);
  abort();
}

static void read_scenario(void) {
  const char *path = getenv("FAKE_NVML_SCENARIO");
  char line[512], key[64], value[256];
  int n;
  num_gpus = 0;
  init_code = SUCCESS;
  snprintf(driver, TEXT, "580.95.05");
  if (!path) {
    for (num_gpus = 0; num_gpus < 8; num_gpus++) plain_gpu(num_gpus);
    gpus[7].power_error = NOT_SUPPORTED;
    return;
  }
  FILE *file = fopen(path, "r");
  if (!file) { init_code = NOT_FOUND; return; }
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "init %d", &init_code) == 1) continue;
    if (sscanf(line, "driver %95[^\n]", driver) == 1) continue;
    if (sscanf(line, "gpu %d %63s %255[^\n]", &n, key, value) == 3 && n >= 0 && n < MAX_GPUS) {
      while (num_gpus <= n) plain_gpu(num_gpus++);
      set_figure(&gpus[n], n, key, value);
    }
  }
  fclose(file);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; read_scenario(); return init_code; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", driver); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = num_gpus; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **handle) {
  if (index >= (unsigned)num_gpus) return INVALID_ARGUMENT;
  *handle = &gpus[index];
  return gpus[index].handle_error;
}

/* What a figure answers instead of a value: its own refusal, or that of the whole GPU. */
#define REFUSE(g, field) if ((g)->every_error) return (g)->every_error; if ((g)->field) return (g)->field

int nvmlDeviceGetName(gpu_t *g, char *out, unsigned size) {
  REFUSE(g, name_error);
  snprintf(out, size, "%s", g->name);
  return SUCCESS;
}

int nvmlDeviceGetUUID(gpu_t *g, char *out, unsigned size) {
  REFUSE(g, uuid_error);
  snprintf(out, size, "%s", g->uuid);
  return SUCCESS;
}

static int fill_pci(pci_t *pci, const char *text) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, 32, "%s", text);
  sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
  return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *g, pci_t *pci) {
  REFUSE(g, pci_error);
  if (g->is_slice) return NOT_SUPPORTED;
  return fill_pci(pci, g->pci);
}

int nvmlDeviceGetMemoryInfo(gpu_t *g, memory_t *memory) {
  REFUSE(g, memory_error);
  memory->total = g->total;
  memory->used = g->used + g->reserved;
  memory->free = g->total - memory->used;
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(gpu_t *g, memory_v2_t *memory) {
  REFUSE(g, memory_error);
  if (g->memory_v2_error) return g->memory_v2_error;
  if (memory->version != 0x02000028) return INVALID_ARGUMENT;
  memory->total = g->total;
  memory->reserved = g->reserved;
  memory->used = g->used;
  memory->free = g->total - g->used - g->reserved;
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(gpu_t *g, utilization_t *rates) {
  REFUSE(g, util_error);
  if (g->is_slice) return NOT_SUPPORTED;
  rates->gpu = g->util;
  rates->memory = 0;
  return SUCCESS;
}

int nvmlDeviceGetPowerUsage(gpu_t *g, unsigned *milliwatts) {
  REFUSE(g, power_error);
  *milliwatts = g->power;
  return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(gpu_t *g, unsigned *milliwatts) {
  REFUSE(g, limit_error);
  *milliwatts = g->limit;
  return SUCCESS;
}

int nvmlDeviceGetTemperature(gpu_t *g, int sensor, unsigned *degrees) {
  REFUSE(g, temp_error);
  if (sensor != 0) return INVALID_ARGUMENT;
  *degrees = g->temp;
  return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(gpu_t *g, unsigned *generation) {
  REFUSE(g, pci_error);
  *generation = g->pcie_gen;
  return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(gpu_t *g, unsigned *width) {
  REFUSE(g, pci_error);
  *width = g->pcie_width;
  return SUCCESS;
}

/* Links 0 … links-1 are active, those up to link_end are there but down, the rest does not exist. */
int nvmlDeviceGetNvLinkState(gpu_t *g, unsigned link, unsigned *active) {
  REFUSE(g, link_error);
  if (link >= (unsigned)g->link_end) return g->link_end_error;
  *active = link < (unsigned)g->links;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(gpu_t *g, unsigned link, unsigned *version) {
  REFUSE(g, link_error);
  if (link >= (unsigned)g->links) return INVALID_ARGUMENT;
  *version = g->link_version;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(gpu_t *g, unsigned link, unsigned *type) {
  REFUSE(g, remote_type_error);
  if (link >= (unsigned)g->links) return INVALID_ARGUMENT;
  *type = g->remote_type;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_t *g, unsigned link, pci_t *pci) {
  REFUSE(g, link_error);
  if (link >= (unsigned)g->links) return INVALID_ARGUMENT;
  return fill_pci(pci, g->peer[link]);
}

int nvmlDeviceGetMigMode(gpu_t *g, unsigned *current, unsigned *pending) {
  REFUSE(g, mig_mode_error);
  *current = *pending = g->mig_mode;
  return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(gpu_t *g, unsigned *count) {
  *count = g->mig_mode ? MAX_SLICES - 1 : 0;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *g, unsigned index, gpu_t **slice) {
  if (index >= (unsigned)g->num_slices) return NOT_FOUND;
  *slice = &slices[g - gpus][index];
  return SUCCESS;
}

/* Asked twice: for the number, then with room for them. */
int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *g, unsigned *count, process_t *found) {
  REFUSE(g, process_error);
  unsigned room = found ? *count : 0;
  *count = g->num_processes;
  if (room < (unsigned)g->num_processes) return INSUFFICIENT_SIZE;
  for (int n = 0; n < g->num_processes; n++) found[n] = g->processes[n];
  return SUCCESS;
}
