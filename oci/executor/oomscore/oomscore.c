// The step between the executor's fork and the execve of a program that is to have an
// oom_score_adj of its own: oomscore.go says why. It runs as a constructor, before the Go
// runtime of its binary starts.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "oomscore.h"

static void __attribute__((noreturn)) fail(const char *what)
{
	dprintf(2, "%s: %s\n", what, strerror(errno));
	_exit(127);
}

static void __attribute__((constructor(101))) oomscore(int argc, char **argv, char **env)
{
	static const char file[] = "/proc/self/oom_score_adj";
	int fd;
	if (argc < 5 || strcmp(argv[1], OOMSCORE_ARG)) // the score, the program, its argv[0] and on
		return;
	fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		fail(file);
	// EACCES: it is less than ours, and we have no CAP_SYS_RESOURCE.
	if (write(fd, argv[2], strlen(argv[2])) < 0 && errno != EACCES)
		fail(file);
	close(fd);
	execve(argv[3], argv + 4, env);
	fail(argv[3]);
}
