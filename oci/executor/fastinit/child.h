// A process of the executor's program with these arguments is fastinit's child.
#define FASTINIT_ARG1 "init"
#define FASTINIT_ARG2 "fast"
