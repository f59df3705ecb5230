package filetrace

import "golang.org/x/sys/unix"

// old enters the calls that only amd64 has.
func old(enter func(nr uint64, name string, s sys)) {
	enter(unix.SYS_OPEN, "open", openAt(-1, 0, 1))
	creat := openAt(-1, 0, 1)
	creat.locate = func(t *tracer, c *call) bool {
		if !named(-1, 0)(t, c) {
			return false
		}
		changesFile(t, c, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC)
		return true
	}
	enter(unix.SYS_CREAT, "creat", creat)
	enter(unix.SYS_MKDIR, "mkdir", making(Mkdir, -1, 0))
	enter(unix.SYS_MKNOD, "mknod", making(Mknod, -1, 0))
	enter(unix.SYS_SYMLINK, "symlink", making(Symlink, -1, 1))
	enter(unix.SYS_LINK, "link", linked(-1, 0, -1, 1))
	enter(unix.SYS_RENAME, "rename", moved(-1, 0, -1, 1, -1))
	enter(unix.SYS_UNLINK, "unlink", removed(-1, 0))
	enter(unix.SYS_RMDIR, "rmdir", removed(-1, 0))
	enter(unix.SYS_CHMOD, "chmod", described(named(-1, 0), true, -1))
	enter(unix.SYS_CHOWN, "chown", described(named(-1, 0), true, -1))
	enter(unix.SYS_LCHOWN, "lchown", described(named(-1, 0), false, -1))
	enter(unix.SYS_NEWFSTATAT, "newfstatat", looks(named(0, 1)))
	enter(unix.SYS_STAT, "stat", looks(named(-1, 0)))
	enter(unix.SYS_LSTAT, "lstat", looks(named(-1, 0)))
	enter(unix.SYS_READLINK, "readlink", looks(named(-1, 0)))
}

// oldForks are ways to fork that only amd64 has.
var oldForks = map[uint64]string{unix.SYS_FORK: "fork", unix.SYS_VFORK: "vfork"}
