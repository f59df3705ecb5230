// A process of the executor's program with these arguments is fastinit's child.
#define FASTINIT_ARG1 "init"
#define FASTINIT_ARG2 "fast"
// What it calls itself until it executes the program, prctl(2) PR_SET_NAME.
#define FASTINIT_NAME "crisp:[init]"
