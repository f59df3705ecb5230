// limit: a pod at the least cost, to compare runtimes with.
//
//	limit ROOTFS DIR CGROUP RULES
//
// It makes what a runtime must make for a restricted pod on the host's network, by the same system
// calls, and nothing else: no records, no logs, no second program before the container's own, no
// checks of what is not trusted. ROOTFS is the lower directory of the root file system, DIR has
// the writable ones, CGROUP is the parent of the cgroups, RULES a file with the seccomp profile as
// lines. On stdin it gets one command a line, and answers each with "ok" or an error:
//
//	pod     the pod's cgroups, IPC namespace and /dev/shm
//	start   the container: its cgroups, root file system, namespaces, and its program
//	exec    another program in it, until that has ended
//	down    everything goes
//
// On cgroup v1 a container joins every hierarchy, and its device rules are written one by one; on
// v2 it is forked into its cgroup, which gets a device program that is loaded once.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS_SLAVE_REC ((1 << 19) | (1 << 14))
#define DATA_ONLY (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)
#define NOBODY 65534

static const char *rootfs, *dir, *parent;
static char hierarchies[16][64]; // below /sys/fs/cgroup; "" is that itself
static int hierarchy_count, unified, device_program = -1;
static struct sock_fprog filter;

// Of the pod and its container.
static int ipc = -1, shm = -1, container_pidfd = -1;
static pid_t container;

static int answer_to = -1; // a child's pipe to its parent

static void __attribute__((noreturn)) stop(const char *what)
{
	char text[256];
	int n = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
	(void)!write(answer_to < 0 ? 2 : answer_to, text, (size_t)n);
	_exit(127);
}

#define need(call)                                                                                 \
	({                                                                                             \
		long result_ = (long)(call);                                                               \
		if (result_ < 0)                                                                           \
			stop(#call);                                                                           \
		(int)result_;                                                                              \
	})

static void put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		stop(path);
	close(fd);
}

static void cgroup_path(char *to, size_t size, int hierarchy, const char *name, const char *file)
{
	snprintf(to, size, "/sys/fs/cgroup%s%s%s%s", hierarchies[hierarchy], parent, name, file);
}

static void find_hierarchies(void)
{
	DIR *d;
	struct dirent *e;
	unified = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
	if (unified) {
		hierarchy_count = 1;
		return;
	}
	d = opendir("/sys/fs/cgroup");
	while (d && (e = readdir(d))) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "/sys/fs/cgroup/%s/release_agent", e->d_name);
		if (e->d_type == DT_DIR && access(path, F_OK) == 0 && hierarchy_count < 16 && strlen(e->d_name) < 60)
			sprintf(hierarchies[hierarchy_count++], "/%s", e->d_name);
	}
	if (d)
		closedir(d);
}

static void copy_file(const char *from, const char *to)
{
	char text[4096];
	int fd = need(open(from, O_RDONLY | O_CLOEXEC));
	ssize_t n = need(read(fd, text, sizeof text - 1));
	close(fd);
	text[n] = 0;
	put(to, text);
}

// make_cgroup makes a cgroup in each hierarchy.
static void make_cgroup(const char *name)
{
	for (int i = 0; i < hierarchy_count; i++) {
		char path[PATH_MAX], above[PATH_MAX + 32], own[PATH_MAX + 32];
		static const char *const sets[] = {"cpuset.cpus", "cpuset.mems"};
		cgroup_path(path, sizeof path, i, name, "");
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			stop(path);
		for (int s = 0; !strcmp(hierarchies[i], "/cpuset") && s < 2; s++) {
			snprintf(above, sizeof above, "%s/../%s", path, sets[s]);
			snprintf(own, sizeof own, "%s/%s", path, sets[s]);
			copy_file(above, own);
		}
	}
}

static void remove_cgroup(const char *name)
{
	for (int i = 0; i < hierarchy_count; i++) {
		char path[PATH_MAX];
		cgroup_path(path, sizeof path, i, name, "");
		for (int tries = 0; rmdir(path) < 0 && errno == EBUSY && tries < 1000; tries++)
			usleep(100); // the last process is on its way out
	}
}

static const char *const devices[] = {"c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm",
	"c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm", "c 10:200 rwm"};

// load_device_program loads one that the container's cgroups share.
static void load_device_program(void)
{
	struct bpf_insn code[] = {
		{.code = 0xb7, .dst_reg = 0, .imm = 1}, // r0 = 1
		{.code = 0x95},                         // exit
	};
	union bpf_attr a = {.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE, .insn_cnt = 2, .insns = (uint64_t)code, .license = (uint64_t)"Apache"};
	if (unified)
		device_program = need(syscall(SYS_bpf, BPF_PROG_LOAD, &a, sizeof a));
}

static void device_rules(void)
{
	char path[PATH_MAX];
	if (unified) {
		cgroup_path(path, sizeof path, 0, "/limit/c", "");
		int fd = need(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		union bpf_attr a = {.target_fd = (uint32_t)fd, .attach_bpf_fd = (uint32_t)device_program, .attach_type = BPF_CGROUP_DEVICE};
		need(syscall(SYS_bpf, BPF_PROG_ATTACH, &a, sizeof a));
		close(fd);
		return;
	}
	for (int i = 0; i < hierarchy_count; i++) {
		if (strcmp(hierarchies[i], "/devices"))
			continue;
		cgroup_path(path, sizeof path, i, "/limit/c", "/devices.deny");
		put(path, "a");
		cgroup_path(path, sizeof path, i, "/limit/c", "/devices.allow");
		for (size_t r = 0; r < sizeof devices / sizeof *devices; r++)
			put(path, devices[r]);
	}
}

static void join_cgroups(void)
{
	for (int i = 0; i < hierarchy_count; i++) {
		char path[PATH_MAX];
		cgroup_path(path, sizeof path, i, "/limit/c", "/cgroup.procs");
		put(path, "0");
	}
}

static int mount_of(const char *type, const char *const *options, unsigned attr)
{
	int context = need(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC)), fd;
	for (; *options; options += 2)
		need(syscall(SYS_fsconfig, context, options[1] ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, options[0], options[1], 0));
	need(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
	fd = need(syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, attr));
	close(context);
	return fd;
}

static void attach(int fd, const char *at)
{
	need(syscall(SYS_move_mount, fd, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH));
	close(fd);
}

static void mount_at(const char *type, const char *const *options, unsigned attr, const char *at)
{
	if (mkdir(at, 0755) < 0 && errno != EEXIST)
		stop(at);
	attach(mount_of(type, options, attr), at);
}

static int clone_of(const char *path, int recursive)
{
	return need(syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0)));
}

static void set_attr(int fd, unsigned flags, uint64_t set)
{
	struct mount_attr a = {.attr_set = set};
	need(syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | flags, &a, sizeof a));
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL, NULL})

static void enter_root(void)
{
	char upper[PATH_MAX], work[PATH_MAX];
	int fd;
	snprintf(upper, sizeof upper, "%s/upper", dir);
	snprintf(work, sizeof work, "%s/work", dir);
	need(mkdir(upper, 0755));
	need(mkdir(work, 0755));
	need(syscall(SYS_mount, NULL, "/", NULL, MS_SLAVE_REC, NULL));
	fd = mount_of("overlay", OPTIONS("lowerdir", rootfs, "upperdir", upper, "workdir", work, "volatile", NULL), 0);
	need(syscall(SYS_move_mount, fd, "", AT_FDCWD, dir, MOVE_MOUNT_F_EMPTY_PATH));
	need(fchdir(fd));
	need(syscall(SYS_pivot_root, ".", "."));
}

static void make_dev(void)
{
	static const struct {
		const char *path;
		unsigned major, minor;
	} nodes[] = {{"dev/null", 1, 3}, {"dev/zero", 1, 5}, {"dev/full", 1, 7}, {"dev/random", 1, 8}, {"dev/urandom", 1, 9}, {"dev/tty", 5, 0}};
	static const char *const links[][2] = {{"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"},
		{"/proc/self/fd/1", "dev/stdout"}, {"/proc/self/fd/2", "dev/stderr"}, {"/proc/kcore", "dev/core"}, {"pts/ptmx", "dev/ptmx"}};
	mount_at("tmpfs", OPTIONS("mode", "755", "size", "64m"), MOUNT_ATTR_NOSUID | MOUNT_ATTR_STRICTATIME, "dev");
	for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
		need(mknod(nodes[i].path, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)));
	for (size_t i = 0; i < sizeof links / sizeof *links; i++)
		need(symlink(links[i][0], links[i][1]));
	mount_at("devpts", OPTIONS("newinstance", NULL, "ptmxmode", "0666", "mode", "0620", "gid", "5"), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, "dev/pts");
	mount_at("mqueue", OPTIONS(), DATA_ONLY, "dev/mqueue");
	need(mkdir("dev/shm", 0755));
	attach(need(syscall(SYS_open_tree, shm, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)), "dev/shm");
}

// make_sys makes /sys; the host's cgroups are still at host, a descriptor of the old root.
static void make_sys(int host)
{
	int all;
	mount_at("sysfs", OPTIONS(), DATA_ONLY | MOUNT_ATTR_RDONLY, "sys");
	if (!unified)
		mount_at("tmpfs", OPTIONS("mode", "755"), DATA_ONLY, "sys/fs/cgroup");
	for (int i = 0; i < hierarchy_count; i++) {
		char from[PATH_MAX], at[PATH_MAX];
		snprintf(from, sizeof from, "sys/fs/cgroup%s%s/limit/c", hierarchies[i], parent);
		snprintf(at, sizeof at, "sys/fs/cgroup%s", hierarchies[i]);
		if (!unified)
			need(mkdir(at, 0755));
		all = need(syscall(SYS_open_tree, host, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
		set_attr(all, 0, DATA_ONLY | MOUNT_ATTR_RDONLY);
		attach(all, at);
	}
	if (!unified) {
		all = need(open("sys/fs/cgroup", O_PATH | O_DIRECTORY | O_CLOEXEC));
		set_attr(all, 0, MOUNT_ATTR_RDONLY);
		close(all);
	}
}

static const char *const masked[] = {"proc/asound", "proc/acpi", "proc/interrupts", "proc/kcore", "proc/keys", "proc/latency_stats",
	"proc/timer_list", "proc/timer_stats", "proc/sched_debug", "proc/scsi", "sys/firmware", "sys/devices/virtual/powercap"};
static const char *const readonly[] = {"proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"};

static void hide(void)
{
	int empty = -1, fd;
	struct stat st;
	for (size_t i = 0; i < sizeof readonly / sizeof *readonly; i++) {
		if (access(readonly[i], F_OK) < 0)
			continue;
		fd = clone_of(readonly[i], 1);
		set_attr(fd, 0, MOUNT_ATTR_RDONLY);
		attach(fd, readonly[i]);
	}
	for (size_t i = 0; i < sizeof masked / sizeof *masked; i++) {
		if (stat(masked[i], &st) < 0)
			continue;
		if (!S_ISDIR(st.st_mode)) {
			attach(clone_of("dev/null", 0), masked[i]);
			continue;
		}
		if (empty < 0)
			fd = mount_of("tmpfs", OPTIONS("nr_inodes", "1"), MOUNT_ATTR_RDONLY);
		else
			fd = need(syscall(SYS_open_tree, empty, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
		if (empty < 0)
			empty = need(fcntl(fd, F_DUPFD_CLOEXEC, 3));
		attach(fd, masked[i]);
	}
}

// become drops everything that a restricted container has not, and executes its program.
static void __attribute__((noreturn)) become(const char *const *args)
{
	static char *const env[] = {"PATH=/bin", NULL};
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
	need(syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, "limit"));
	umask(022);
	need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	for (int c = 0; c <= CAP_LAST_CAP; c++)
		(void)prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
	need(setgroups(0, NULL));
	need(setresgid(NOBODY, NOBODY, NOBODY));
	need(setresuid(NOBODY, NOBODY, NOBODY));
	need(syscall(SYS_capset, &head, none));
	need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0));
	need(execve(args[0], (char *const *)args, env));
	_exit(127);
}

static long fork_into(uint64_t flags)
{
	struct clone_args a = {.flags = flags, .exit_signal = SIGCHLD};
	if (unified) {
		char path[PATH_MAX];
		cgroup_path(path, sizeof path, 0, "/limit/c", "");
		a.cgroup = (uint64_t)need(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		a.flags |= CLONE_INTO_CGROUP;
	}
	long pid = syscall(SYS_clone3, &a, sizeof a);
	if (pid != 0 && unified)
		close((int)a.cgroup);
	return pid;
}

// heard waits until a child has executed its program, and returns what it could not do, or NULL.
static const char *heard(int pipe_end)
{
	static char text[256];
	ssize_t n = read(pipe_end, text, sizeof text - 1);
	close(pipe_end);
	if (n <= 0)
		return NULL;
	text[n] = 0;
	return text;
}

static const char *start(void)
{
	static const char *const args[] = {"/bin/sleep", "36000", NULL};
	int ends[2], host;
	const char *failed;
	make_cgroup("/limit/c");
	device_rules();
	need(pipe2(ends, O_CLOEXEC));
	container = need(fork_into(CLONE_NEWPID | CLONE_NEWNS));
	if (container == 0) {
		answer_to = ends[1];
		(void)setsid();
		put("/proc/thread-self/oom_score_adj", "1000");
		if (!unified)
			join_cgroups();
		need(setns(ipc, CLONE_NEWIPC));
		host = need(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
		enter_root();
		mount_at("proc", OPTIONS(), DATA_ONLY, "proc");
		make_dev();
		make_sys(host);
		hide();
		need(fchdir(host)); // the old root, which is above the new one
		need(syscall(SYS_umount2, ".", 2 /* MNT_DETACH */));
		need(chdir("/"));
		become(args);
	}
	close(ends[1]);
	failed = heard(ends[0]);
	container_pidfd = need(syscall(SYS_pidfd_open, container, 0));
	return failed;
}

static const char *exec(void)
{
	static const char *const args[] = {"/bin/true", NULL};
	int ends[2], status = 0;
	const char *failed;
	pid_t pid;
	need(pipe2(ends, O_CLOEXEC));
	pid = need(fork_into(0));
	if (pid == 0) {
		answer_to = ends[1];
		if (!unified)
			join_cgroups();
		need(setns(container_pidfd, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC));
		pid = need(fork());
		if (pid == 0)
			become(args);
		need(waitpid(pid, &status, 0));
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128);
	}
	close(ends[1]);
	failed = heard(ends[0]);
	need(waitpid(pid, &status, 0));
	return failed ? failed : status ? "exec: it failed" : NULL;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind, (void)at;
	return remove(path);
}

static void down(void)
{
	static const char *const parts[] = {"upper", "work"};
	char path[PATH_MAX];
	if (container > 0) {
		(void)kill(container, SIGKILL);
		(void)waitpid(container, NULL, 0);
		container = 0;
	}
	if (container_pidfd >= 0)
		close(container_pidfd);
	if (shm >= 0)
		close(shm);
	if (ipc >= 0)
		close(ipc);
	container_pidfd = shm = ipc = -1;
	remove_cgroup("/limit/c");
	remove_cgroup("/limit");
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, parts[i]);
		(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	}
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

// pod also moves a process within its cgroup: the first move after a pause waits for an RCU grace
// period, which can be over when the container moves.
static void pod(void)
{
	static int own = -1;
	pid_t first = unified ? -1 : fork();
	if (first == 0) {
		char path[PATH_MAX];
		cgroup_path(path, sizeof path, 0, "", "/cgroup.procs");
		put(path, "0");
		_exit(0);
	}
	make_cgroup("/limit");
	if (own < 0)
		own = need(open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC));
	need(unshare(CLONE_NEWIPC));
	ipc = need(open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC));
	need(setns(own, CLONE_NEWIPC));
	shm = mount_of("tmpfs", OPTIONS("mode", "1777", "size", "64m"), DATA_ONLY);
}

// load_filter compiles the profile: "default ERRNO", "arch NAME" and "rule NAME ERRNO" (0 allows the call),
// the latter with "INDEX OPERATOR VALUE VALUE" if an argument decides.
static void load_filter(const char *path)
{
	FILE *f = fopen(path, "re");
	char line[512], word[16], name[64];
	scmp_filter_ctx context = NULL;
	int memory = need(memfd_create("filter", MFD_CLOEXEC));
	if (!f)
		stop(path);
	while (fgets(line, sizeof line, f)) {
		unsigned number = 0, index = 0, operator= 0;
		unsigned long long one = 0, two = 0;
		int n = sscanf(line, "%15s %63s %u %u %u %llu %llu", word, name, &number, &index, &operator, &one, &two);
		int call = n < 2 ? __NR_SCMP_ERROR : seccomp_syscall_resolve_name(name);
		struct scmp_arg_cmp arg = {index, (enum scmp_compare)operator, one, two};
		if (!strcmp(word, "default"))
			context = seccomp_init(SCMP_ACT_ERRNO((unsigned)atoi(name)));
		else if (!strcmp(word, "arch"))
			(void)seccomp_arch_add(context, seccomp_arch_resolve_name(name));
		else if (call != __NR_SCMP_ERROR && (errno = -seccomp_rule_add_array(context, number ? SCMP_ACT_ERRNO(number) : SCMP_ACT_ALLOW, call, n == 7, &arg)))
			stop(name);
	}
	fclose(f);
	if ((errno = -seccomp_export_bpf(context, memory)))
		stop("export the seccomp filter");
	off_t size = need(lseek(memory, 0, SEEK_END));
	filter.len = (unsigned short)((size_t)size / sizeof *filter.filter);
	filter.filter = malloc((size_t)size);
	need(pread(memory, filter.filter, (size_t)size, 0));
	close(memory);
	seccomp_release(context);
}

int main(int argc, char **argv)
{
	char line[32];
	if (argc != 5) {
		fprintf(stderr, "usage: limit ROOTFS DIR CGROUP RULES\n");
		return 2;
	}
	rootfs = argv[1], dir = argv[2], parent = argv[3];
	umask(0);
	find_hierarchies();
	make_cgroup("");
	load_device_program();
	load_filter(argv[4]);
	while (fgets(line, sizeof line, stdin)) {
		const char *failed = NULL;
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "pod"))
			pod();
		else if (!strcmp(line, "start"))
			failed = start();
		else if (!strcmp(line, "exec"))
			failed = exec();
		else
			down();
		printf("%s\n", failed ? failed : "ok");
		fflush(stdout);
	}
	down();
	return 0;
}
