"""Answers of the command line: lines for people, documents for --json. Formats only; figures come from their rooms."""
