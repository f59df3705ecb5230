// A process of the executor's program with this argument is to become another program.
#define OOMSCORE_ARG "oom-score"
