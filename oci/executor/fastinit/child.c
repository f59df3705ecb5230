// The first process of a container or of an exec, from the executor's fork to the
// program's execve. child.h says when it runs; plan.go writes what it reads.
//
// It runs before the Go runtime of its binary starts: on amd64 as the program's entry,
// before libc (bare.h), elsewhere as a constructor. There is one thread. Every step is one case of
// run(); a step that fails ends the process, after telling the executor its number and
// errno.
//
// Nothing in the container is trusted, and nothing of it runs yet. Paths in it are
// resolved after pivot_root, below the new root and without magic links, into a
// descriptor, and mounts are attached to that descriptor (move_mount(2)): a path is
// never looked at twice.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <termios.h>
#include <unistd.h>

#include "bare.h"
#include "child.h"

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif
#define PROC_MAGIC 0x9fa0 // statfs(2)
#define DEVPTS_MAGIC 0x1cd1
// What it calls itself until it executes the program; that may have the same name.
#define NAME "crisp:[init]"

enum { SYNC = 3, PLAN = 4 }; // descriptors; further ones follow
enum { SLOTS = 900 };

// As in plan.go.
enum step {
	END, TREE, JOIN, JOINPATH, UNSHARE, WAIT, ROOT, FSMOUNT, NODE, LINK,
	ATTACH, READONLY, MASK, ROOTREADONLY, DEVNULL, KEYRING, MAKECWD, PROC, FORK, TERMINAL, PROCESS
};

static const char *plan, *plan_end;
static char **arena; // for lists of strings, which take less than the plan does
static uint64_t step_number;
static int slot[SLOTS];
static int root_dir = -1; // the container's root directory, see in_root

// A report is what the executor reads from SYNC.
struct report {
	uint64_t kind; // 'p' goes on as another process, 'w' waits, 'x' is about to execute, 'e' has failed
	uint64_t step, detail; // detail of 'p' is that process
	int64_t error; // errno
};

static void __attribute__((noreturn)) fail_at(uint64_t detail, int error)
{
	struct report r = {'e', step_number, detail, error};
	(void)!write(SYNC, &r, sizeof r);
	_exit(127);
}

static void __attribute__((noreturn)) fail(void) { fail_at(0, errno); }

static int need(long result)
{
	if (result < 0)
		fail();
	return (int)result;
}

static uint64_t number(void)
{
	uint64_t n;
	if (plan_end - plan < 8)
		fail_at(0, EBADMSG);
	memcpy(&n, plan, 8);
	plan += 8;
	return n;
}

static const void *bytes(uint64_t *size)
{
	const char *at;
	*size = number();
	if ((uint64_t)(plan_end - plan) < *size)
		fail_at(0, EBADMSG);
	at = plan;
	plan += (*size + 7) & ~7ULL;
	if (plan > plan_end)
		fail_at(0, EBADMSG);
	return at;
}

// string returns a string of the plan, whose terminating zero is in it.
static const char *string(void)
{
	uint64_t size;
	const char *s = bytes(&size);
	if (size == 0 || s[size - 1] != 0)
		fail_at(0, EBADMSG);
	return s;
}

static char **strings(void)
{
	uint64_t n = number();
	char **list;
	if (n > (uint64_t)(plan_end - plan) / 8)
		fail_at(0, EBADMSG);
	list = arena;
	arena += n + 1;
	for (uint64_t i = 0; i < n; i++)
		list[i] = (char *)string();
	return list;
}

static void *memory(long size, int flags, int fd)
{
	long at = syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (at == -1)
		fail();
	return (void *)at;
}

static int *slot_number(void)
{
	uint64_t n = number();
	if (n >= SLOTS)
		fail_at(0, EBADMSG);
	return &slot[n];
}

// done_with closes what a slot has: by the last step, the limit of descriptors may be below theirs.
static void done_with(int *fd)
{
	close(*fd);
	*fd = -1;
}

static long mount_setattr(int dir, const char *path, unsigned flags, uint64_t set, uint64_t clear, uint64_t propagation)
{
	struct mount_attr a = {.attr_set = set, .attr_clr = clear, .propagation = propagation};
	if (!set && !clear && !propagation)
		return 0;
	return syscall(SYS_mount_setattr, dir, path, flags, &a, sizeof a);
}

// in_root opens a path of the container; "resolve" are further RESOLVE_ flags. Nothing is
// mounted at the root directory itself after the first call (attach_at refuses that).
static int in_root(const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = {
		.flags = flags | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve,
	};
	int fd;
	if (root_dir < 0)
		root_dir = need(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
	// EAGAIN: something was renamed or mounted, anywhere, while ".." was looked up.
	for (int tries = 0; tries < 1000; tries++) {
		fd = (int)syscall(SYS_openat2, root_dir, path, &how, sizeof how);
		if (fd >= 0 || errno != EAGAIN)
			break;
	}
	return fd;
}

// make makes a path of the container and the directories that lead to it, and opens it.
static int make(const char *path, int file, uint64_t resolve)
{
	char prefix[PATH_MAX];
	size_t at = 0;
	int parent, fd;
	if (length(path) >= sizeof prefix) {
		errno = ENAMETOOLONG;
		return -1;
	}
	parent = in_root("/", O_PATH | O_DIRECTORY, 0);
	while (parent >= 0) {
		size_t from = at + span(path + at, '/', 1), to = from + span(path + from, '/', 0);
		int last = path[to + span(path + to, '/', 1)] == 0;
		*copy(prefix, path, to) = 0;
		fd = in_root(prefix, O_PATH | (last ? 0 : O_DIRECTORY), resolve);
		if (fd < 0 && errno == ENOENT) {
			const char *name = prefix + from;
			int made;
			if (last && file) {
				made = openat(parent, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
				if (made >= 0)
					close(made);
			} else {
				made = mkdirat(parent, name, 0755);
			}
			if (made < 0 && errno != EEXIST)
				break;
			fd = in_root(prefix, O_PATH | (last ? 0 : O_DIRECTORY), resolve);
		}
		if (fd < 0)
			break;
		close(parent);
		if (last)
			return fd;
		parent = fd;
		at = to;
	}
	return -1;
}

static void attach(int mount, int target)
{
	need(syscall(SYS_move_mount, mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
}

static int clone_of(int fd, unsigned flags)
{
	return need(syscall(SYS_open_tree, fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags));
}

static int new_mount(const char *type, const char *source, char **options, uint64_t attr)
{
	int context = need(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC)), fd;
	if (*source)
		need(syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "source", source, 0));
	for (; *options; options++) {
		char *equals = *options + span(*options, '=', 0);
		if (!*equals) {
			need(syscall(SYS_fsconfig, context, FSCONFIG_SET_FLAG, *options, NULL, 0));
			continue;
		}
		*equals = 0;
		need(syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, *options, equals + 1, 0));
		*equals = '=';
	}
	need(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
	fd = need(syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, attr));
	close(context);
	return fd;
}

// label_root gives the root of a new mount an SELinux label, "" for none.
static void label_root(int mount, const char *label)
{
	int dir;
	if (!*label)
		return;
	dir = need(openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
	need(fsetxattr(dir, "security.selinux", label, length(label), 0));
	close(dir);
}

// is_root reports whether a file is the root directory. What is mounted over that is not seen by the
// first process, whose root stays below, but by each exec.
static int is_root(const struct stat *st)
{
	static struct stat top;
	if (!top.st_nlink)
		need(stat_of("/", &top));
	return top.st_dev == st->st_dev && top.st_ino == st->st_ino;
}

static int is_null(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

// tree clones mounts of the host. It may wait for a file system that does not respond.
static void tree(void)
{
	int *to = slot_number();
	uint64_t recursive = number(), set = number(), clear = number();
	uint64_t recursive_set = number(), recursive_clear = number();
	uint64_t propagation = number(), propagation_recursive = number(), mapped_recursive = number();
	const char *path = string(), *users = string(); // a user namespace that maps the IDs, or ""
	unsigned all = recursive ? AT_RECURSIVE : 0;
	*to = need(syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | all));
	need(mount_setattr(*to, "", AT_EMPTY_PATH, set, clear, 0));
	need(mount_setattr(*to, "", AT_EMPTY_PATH | AT_RECURSIVE, recursive_set, recursive_clear, 0));
	need(mount_setattr(*to, "", AT_EMPTY_PATH | (propagation_recursive ? AT_RECURSIVE : 0), 0, 0, propagation));
	if (*users) {
		struct mount_attr a = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)need(open(users, O_RDONLY | O_CLOEXEC))};
		need(syscall(SYS_mount_setattr, *to, "", AT_EMPTY_PATH | (mapped_recursive ? AT_RECURSIVE : 0), &a, sizeof a));
		close((int)a.userns_fd);
	}
}

// join joins namespaces. In a user namespace it becomes the root.
static void join(int fd, int kinds)
{
	need(setns(fd, kinds));
	close(fd);
	if (!(kinds & CLONE_NEWUSER))
		return;
	need(syscall(SYS_setgroups, 0, NULL));
	need(setresgid(0, 0, 0));
	need(setresuid(0, 0, 0));
	need(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)); // the new user may have set it
}

// join_path joins a namespace by the path at which the host has it.
static void join_path(void)
{
	uint64_t kind = number();
	join(need(open(string(), O_RDONLY | O_CLOEXEC)), (int)kind);
}

// join_both joins namespaces, and then a user namespace, unless it is "". It is opened first: a mount
// namespace may be among the others.
static void join_both(void)
{
	int fd = (int)number(), kinds = (int)number();
	const char *path = string();
	int users = *path ? need(open(path, O_RDONLY | O_CLOEXEC)) : -1;
	join(fd, kinds);
	if (users >= 0)
		join(users, CLONE_NEWUSER);
}

static void wait_for_executor(char kind)
{
	struct report r = {kind, step_number, 0, 0};
	char answer;
	if (write(SYNC, &r, sizeof r) != sizeof r)
		_exit(127);
	for (;;) {
		ssize_t n = read(SYNC, &answer, 1);
		if (n == 1)
			return;
		if (n == 0 || errno != EINTR)
			_exit(127); // the executor has gone, or has given this up
	}
}

// go_on_in_child forks into the PID namespace that was joined, and lets the child, which
// is the executor's, go on. The executor does not fork into it: a process in there could stop the
// fork, and all other forks of the executor would wait for it.
static void go_on_in_child(void)
{
	long pid = need(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
	struct report r = {'p', step_number, (uint64_t)pid, 0};
	if (pid) {
		(void)!write(SYNC, &r, sizeof r);
		_exit(0);
	}
	(void)setsid();
}

// root makes a tree the root directory. We are in a mount namespace that has a single
// mount, with a directory "root".
static void root(void)
{
	int *tree = slot_number();
	need(syscall(SYS_move_mount, *tree, "", AT_FDCWD, "/root", MOVE_MOUNT_F_EMPTY_PATH));
	need(fchdir(*tree));
	need(syscall(SYS_pivot_root, ".", "."));
	need(syscall(SYS_umount2, ".", 2 /* MNT_DETACH */));
	need(chdir("/"));
	done_with(tree);
}

// parent_of opens the directory of a path in one of our mounts, and makes it.
static int parent_of(int dir, const char *path, const char **name)
{
	int at = need(fcntl(dir, F_DUPFD_CLOEXEC, 3));
	for (;;) {
		char part[NAME_MAX + 1];
		size_t n;
		int next;
		path += span(path, '/', 1);
		n = span(path, '/', 0);
		if (path[n] == 0) {
			*name = path;
			return at;
		}
		if (n > NAME_MAX)
			fail_at(0, ENAMETOOLONG);
		*copy(part, path, n) = 0;
		if (mkdirat(at, part, 0755) < 0 && errno != EEXIST)
			fail();
		next = need(openat(at, part, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
		close(at);
		at = next;
		path += n;
	}
}

static void node(void)
{
	int dir = *slot_number(), parent;
	const char *path = string(), *name;
	mode_t mode = (mode_t)number();
	unsigned major_number = (unsigned)number(), minor_number = (unsigned)number();
	uid_t uid = (uid_t)number();
	gid_t gid = (gid_t)number();
	parent = parent_of(dir, path, &name);
	if (mknodat(parent, name, mode, makedev(major_number, minor_number)) < 0) {
		if (errno != EEXIST)
			fail();
	} else {
		need(fchownat(parent, name, uid, gid, AT_SYMLINK_NOFOLLOW));
		need(fchmodat(parent, name, mode & 07777)); // after chown, which clears bits
	}
	close(parent);
}

static void link_in(void)
{
	int dir = *slot_number();
	const char *target = string(), *name = string();
	if (symlinkat(target, dir, name) < 0 && errno != EEXIST)
		fail();
}

// attach_at attaches a mount to a path of the container, which is made if it is missing:
// a file for a file, a directory otherwise.
static void attach_at(void)
{
	int *mount = slot_number(), target;
	uint64_t plain = number(); // it must be a directory, and no link may lead there
	const char *path = string();
	struct statfs fs;
	struct stat source, at;
	need(fstat(*mount, &source));
	target = need(make(path, !S_ISDIR(source.st_mode), plain ? RESOLVE_NO_SYMLINKS : 0));
	need(fstat(target, &at));
	if (plain && !S_ISDIR(at.st_mode))
		fail_at(0, ENOTDIR);
	// What is mounted over a part of a procfs could stand in for it.
	need(fstatfs(target, &fs));
	if (fs.f_type == PROC_MAGIC)
		fail_at(1, EPERM);
	if (is_root(&at))
		fail_at(2, EPERM);
	attach(*mount, target);
	close(target);
	done_with(mount);
}

static void root_readonly(void) { need(mount_setattr(AT_FDCWD, "/", 0, MOUNT_ATTR_RDONLY, 0, 0)); }

static int gone(void) { return errno == ENOENT || errno == ENOTDIR; }

static void readonly(void)
{
	int target = in_root(string(), O_PATH, 0), copy;
	struct stat st;
	if (target < 0 && gone())
		return;
	need(target);
	need(fstat(target, &st));
	if (is_root(&st)) {
		root_readonly();
	} else {
		copy = clone_of(target, AT_RECURSIVE);
		need(mount_setattr(copy, "", AT_EMPTY_PATH, MOUNT_ATTR_RDONLY, 0, 0));
		attach(copy, target);
		close(copy);
	}
	close(target);
}

// dev_null returns the container's /dev/null, not opened: a volume may have put any device or fifo
// there, and merely to open one can have effects.
static int dev_null(void)
{
	struct stat st;
	int fd = need(in_root("/dev/null", O_PATH, RESOLVE_NO_SYMLINKS));
	need(fstat(fd, &st));
	if (!is_null(&st))
		fail_at(3, EPERM);
	return fd;
}

static void mask(void)
{
	static int null = -1, empty = -1;
	const char *path = string();
	char **context = strings(); // of a tmpfs, besides its other options
	struct stat st;
	int target = in_root(path, O_PATH, 0), cover;
	if (target < 0 && gone())
		return;
	need(target);
	need(fstat(target, &st));
	if (is_root(&st))
		fail_at(2, EPERM);
	if (!S_ISDIR(st.st_mode)) {
		if (null < 0)
			null = dev_null();
		cover = clone_of(null, 0);
	} else if (empty < 0) {
		char ro[] = "ro", blocks[] = "nr_blocks=1", inodes[] = "nr_inodes=1";
		char *options[] = {ro, blocks, inodes, context[0], NULL};
		cover = new_mount("tmpfs", "tmpfs", options, MOUNT_ATTR_RDONLY);
		empty = need(fcntl(cover, F_DUPFD_CLOEXEC, 3));
	} else {
		cover = clone_of(empty, 0); // where it is attached first
	}
	attach(cover, target);
	close(cover);
	close(target);
}

// reopen_null lets those of stdin, stdout and stderr that are the host's /dev/null be the
// container's. By this step no mount is below /proc, which is the container's procfs or is not there.
static void reopen_null(void)
{
	struct stat st;
	struct statfs fs;
	char name[16];
	int null = dev_null(), own = need(in_root("/proc/self/fd", O_PATH | O_DIRECTORY, 0)), fd;
	need(fstatfs(own, &fs));
	if (fs.f_type != PROC_MAGIC)
		fail_at(0, EPERM);
	*decimal(name, (uint64_t)null) = 0;
	fd = need(openat(own, name, O_RDWR | O_CLOEXEC, 0));
	for (int i = 0; i < 3; i++) {
		need(fstat(i, &st));
		if (is_null(&st))
			need(dup3(fd, i, 0));
	}
	close(fd);
	close(own);
	close(null);
}

// host_proc opens the host's procfs. "thread-self" in it is this process also in a PID namespace below.
static int host_proc(void)
{
	struct statfs fs;
	int proc = need(open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
	need(fstatfs(proc, &fs));
	if (fs.f_type != PROC_MAGIC)
		fail_at(0, ENOTDIR);
	return proc;
}

static void write_attribute(int proc, const char *path, const char *value)
{
	int fd = need(openat(proc, path, O_WRONLY | O_CLOEXEC, 0));
	need(write(fd, value, length(value)));
	close(fd);
}

// keyring joins a session keyring of its own; a kernel need not have them. The execve resets the label
// of new keys, selinux_bprm_creds_for_exec.
static void keyring(int proc)
{
	const char *name = string();
	uint64_t search = number();
	const char *label = string();
	unsigned perm = 0;
	char text[256], *at = text;
	long id;
	if (*label && (syscall(SYS_faccessat, proc, "thread-self/attr/keycreate", F_OK) == 0 || errno != ENOENT))
		write_attribute(proc, "thread-self/attr/keycreate", label);
	id = syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, name);
	if (id < 0 && errno == ENOSYS)
		return;
	need(id);
	if (!search)
		return;
	// keyctl(2), KEYCTL_DESCRIBE: "type;uid;gid;perm;description".
	long n = syscall(SYS_keyctl, 6, (int)id, text, sizeof text - 1);
	need(n);
	text[sizeof text - 1] = 0;
	for (int field = 0; field < 3; field++) {
		at += span(at, ';', 0);
		if (!*at++)
			fail_at(0, EBADMSG);
	}
	for (; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
		perm = perm << 4 | (unsigned)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
	if (*at != ';')
		fail_at(0, EBADMSG);
	need(syscall(SYS_keyctl, 5 /* KEYCTL_SETPERM */, (int)id, perm | (unsigned)search));
}

// send_file sends a descriptor over a socket.
static void send_file(int socket, int fd)
{
	char byte = 0;
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof fd)];
	} control = {.head = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	need(sendmsg(socket, &message, 0));
}

// terminal makes a terminal of the container's, sends the executor the end that controls it, by the
// socket that stdin is until then, and makes the other one stdio. It opens no other file than a new
// terminal: nothing may be mounted inside the devpts.
static void terminal(void)
{
	uint64_t is_console = number(); // is mounted at /dev/console, too
	unsigned short width = (unsigned short)number(), height = (unsigned short)number();
	struct winsize size = {.ws_col = width, .ws_row = height};
	struct open_how how = {
		.flags = O_RDWR | O_NOCTTY | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};
	int pts = need(in_root("/dev/pts", O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS)), locked = 0, control, own;
	struct statfs fs;
	need(fstatfs(pts, &fs));
	if (fs.f_type != DEVPTS_MAGIC)
		fail_at(0, ENOTTY);
	control = need(syscall(SYS_openat2, pts, "ptmx", &how, sizeof how));
	need(ioctl(control, TIOCSPTLCK, &locked));
	own = need(ioctl(control, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
	if (width && height)
		need(ioctl(control, TIOCSWINSZ, &size));
	if (is_console) {
		int target = need(make("/dev/console", 1, RESOLVE_NO_SYMLINKS)), mount = clone_of(own, 0);
		attach(mount, target);
		close(mount);
		close(target);
	}
	send_file(0, control);
	for (int i = 0; i < 3; i++)
		need(dup3(own, i, 0));
	need(ioctl(0, TIOCSCTTY, 0));
	close(own);
	close(control);
	close(pts);
}

static void set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {
		{(uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable},
		{(uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32)},
	};
	need(syscall(SYS_capset, &head, data));
}

// find returns the program as execvp(3) finds it, and ends the process if it finds none: the name
// itself, or the first of the files where PATH may have it.
static const char *find(const char *name, char *const *file)
{
	struct stat st;
	if (name[span(name, '/', 0)]) {
		if (stat_of(name, &st) < 0)
			fail_at(4, errno);
		if (S_ISDIR(st.st_mode))
			fail_at(5, EISDIR);
		if (may_execute(name) < 0 && errno != ENOSYS && errno != EPERM)
			fail_at(5, errno);
		return name;
	}
	for (; *file; file++) {
		if (stat_of(*file, &st) < 0 || S_ISDIR(st.st_mode) || may_execute(*file) < 0)
			continue;
		if (**file != '/')
			fail_at(7, EPERM);
		return *file;
	}
	fail_at(6, ENOENT); // of one that may not be executed too, as other runtimes say
}

static void load_filter(const void *program, uint64_t size, uint64_t flags)
{
	struct sock_fprog p = {(unsigned short)(size / sizeof(struct sock_filter)), (struct sock_filter *)program};
	if (flags)
		need(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p));
	else
		need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0));
}

static void own_stdio(uid_t uid)
{
	struct stat st;
	for (int fd = 0; fd < 3; fd++) {
		need(fstat(fd, &st));
		if (st.st_uid == uid || is_null(&st))
			continue;
		if (fchown(fd, uid, (gid_t)-1) < 0 && errno != EPERM && errno != EROFS)
			fail();
	}
}

static void __attribute__((noreturn)) process(int proc)
{
	uint64_t size, count;
	uid_t uid = (uid_t)number();
	gid_t gid = (gid_t)number();
	const gid_t *groups = bytes(&count);
	uint64_t bounding = number(), effective = number(), permitted = number(), inheritable = number(), ambient = number();
	uint64_t no_new_privs = number(), keeps_groups = number(), last_cap = number(), filter_flags = number();
	const void *filter = bytes(&size);
	uint64_t says = number(); // it says itself on its stderr that the program cannot be executed
	char **attributes = strings(); // of the host's procfs, and their values
	const char *cwd = string(), *program;
	char **args = strings(), **files = strings(), **env = strings();
	char here[PATH_MAX];
	int inside = 0;
	struct report r = {'x', step_number, 0, 0};

	umask(022);
	need(syscall(SYS_close_range, 3, ~0U, 1 << 2 /* CLOSE_RANGE_CLOEXEC */)); // a filter may forbid it
	for (; attributes[0] && attributes[1]; attributes += 2)
		write_attribute(proc, attributes[0], attributes[1]);
	if (proc >= 0)
		close(proc); // the paths that follow are the container's, and could lead through it
	if (no_new_privs)
		need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (size && !no_new_privs) // it is a privilege, and so comes before they are dropped
		load_filter(filter, size, filter_flags);
	if (*cwd) {
		if (chdir(cwd) == 0)
			inside = 1;
		else if (errno != EACCES && errno != EPERM) // the user's own rights may do
			fail_at(8, errno);
	}
	for (uint64_t c = 0; c <= last_cap; c++)
		if (!(bounding >> c & 1))
			need(prctl(PR_CAPBSET_DROP, c, 0, 0, 0));
	need(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
	own_stdio(uid);
	if (!keeps_groups)
		need(syscall(SYS_setgroups, count / sizeof *groups, groups));
	need(syscall(SYS_setgid, gid)); // by the calls that profiles made for other runtimes allow
	need(syscall(SYS_setuid, uid));
	if (*cwd && !inside && chdir(cwd) < 0)
		fail_at(8, errno);
	// getcwd(2): "(unreachable)" is before what is outside of the root (CVE-2024-21626).
	need(syscall(SYS_getcwd, here, sizeof here));
	if (here[0] != '/')
		fail_at(9, EPERM);
	need(prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0));
	set_capabilities(effective, permitted, inheritable);
	need(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
	for (uint64_t c = 0; c <= last_cap; c++)
		if (ambient >> c & 1) // one that is not inheritable cannot be had, as with libcontainer
			(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0);
	program = find(args[0], files);
	if (write(SYNC, &r, sizeof r) != sizeof r)
		_exit(127); // what the executor does not know of must not run
	if (size && no_new_privs)
		load_filter(filter, size, filter_flags);
	execve(program, args, env);
	if (!says)
		fail_at(10, errno);
	const char *parts[] = {"exec ", program, ": ", reason(errno), "\n"};
	for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
		(void)write(2, parts[i], length(parts[i]));
	_exit(255);
}

static void __attribute__((noreturn)) run(void)
{
	int proc = -1;
	for (;; step_number++) {
		switch ((enum step)number()) {
		case TREE:
			tree();
			break;
		case JOIN:
			join_both();
			break;
		case JOINPATH:
			join_path();
			break;
		case UNSHARE:
			need(unshare((int)number()));
			break;
		case WAIT:
			wait_for_executor('w');
			break;
		case ROOT:
			root();
			break;
		case FSMOUNT: {
			int *to = slot_number();
			uint64_t attr = number();
			const char *type = string(), *source = string();
			*to = new_mount(type, source, strings(), attr);
			label_root(*to, string());
			break;
		}
		case NODE:
			node();
			break;
		case LINK:
			link_in();
			break;
		case ATTACH:
			attach_at();
			break;
		case READONLY:
			readonly();
			break;
		case MASK:
			mask();
			break;
		case ROOTREADONLY:
			root_readonly();
			break;
		case DEVNULL:
			reopen_null();
			break;
		case KEYRING:
			keyring(proc);
			break;
		case MAKECWD:
			close(need(make(string(), 0, 0)));
			break;
		case PROC:
			proc = host_proc();
			break;
		case FORK:
			go_on_in_child();
			break;
		case TERMINAL:
			terminal();
			break;
		case PROCESS:
			process(proc);
		case END:
		default:
			fail_at(0, EBADMSG);
		}
	}
}

static void __attribute__((constructor(101))) fastinit(int argc, char **argv)
{
	struct stat st;
	if (argc != 3 || !is(argv[1], FASTINIT_ARG1) || !is(argv[2], FASTINIT_ARG2))
		return;
	// No process in the container may look into it before it is the container's program.
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NAME, NAME, 0, 0, 0) < 0)
		_exit(127);
	need(syscall(SYS_close_range, 3, ~0U, 1 << 2 /* CLOSE_RANGE_CLOEXEC */));
	(void)setsid();
	need(fstat(PLAN, &st));
	plan = memory(st.st_size, MAP_PRIVATE | MAP_POPULATE, PLAN);
	arena = memory(st.st_size + 8, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	close(PLAN);
	plan_end = plan + st.st_size;
	run();
}

#if defined(__x86_64__)
void __attribute__((visibility("hidden"))) fastinit_first(long *stack)
{
	fastinit((int)stack[0], (char **)(stack + 1));
}

// The program's entry: the stack has its arguments, and rdx what libc's entry gets.
__asm__(".text\n"
	".globl fastinitentry\n"
	".type fastinitentry, @function\n"
	"fastinitentry:\n"
	"	endbr64\n"
	"	mov %rsp, %rdi\n"
	"	push %rdx\n"
	"	push %rdx\n"
	"	call fastinit_first\n"
	"	pop %rdx\n"
	"	pop %rdx\n"
	"	jmp _start\n"
	".size fastinitentry, . - fastinitentry\n");
#endif
