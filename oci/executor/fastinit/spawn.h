#include <sys/types.h>

// The descriptors that a child is given: stdio, the connection, the plan and one more.
#define SPAWN_FILES 6

// spawn_reserve keeps descriptors for spawn, as low as can be had. It returns 0, or an errno.
int spawn_reserve(void);

// spawn forks a child of the calling thread, which executes this program as fastinit's child:
// in "/", without an environment, with files as its descriptors from 0 on. flags are of
// clone(2). It returns the PID, or the negative errno. One call at a time.
pid_t spawn(const int files[SPAWN_FILES], int flags);
