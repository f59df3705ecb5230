package apparmor

import (
	"fmt"
	"strings"
)

// text is the default profile, in the language of apparmor.d(5); NAME is replaced by the
// profile's name.
//
// It permits what the container's namespaces, capabilities, seccomp filter and user permit,
// except what would still reach beyond the container: mounts, and the kernel's settings in /proc
// and /sys. A process of the container may trace and signal only processes with the same
// profile.
//
// "deny" takes precedence over rules that allow. apparmor.d(5) has no "except", so files that
// stay writable among denied ones are spared letter by letter.
//
// The missing abi line is intentional: the parser then compiles for the classes that it has
// always mediated, and a newer kernel does not refuse classes that this text cannot name.
const text = `
profile NAME flags=(attach_disconnected,mediate_deleted) {
  file,
  network,
  capability,
  umount,

  # Whoever is not confined may signal the container: crispd's executor, an
  # administrator. OCI runtimes have profiles of their own on some systems.
  signal (receive) peer=unconfined,
  signal (receive) peer={runc,crun,youki},
  signal (receive) peer={/usr,/usr/local}/{bin,sbin,libexec/crisp}/{crispd,crisp-executor,runc,crun},
  signal (send,receive) peer=NAME,
  ptrace (trace,tracedby,read,readby) peer=NAME,

  deny mount,
  # The kernel's cryptography: in no namespace, and nothing that seccomp could keep
  # from 32-bit programs.
  deny network alg,

  # The kernel's memory, and its emergency keys.
  deny /proc/{kcore,kmem,mem,sysrq-trigger} rwlkx,
  # What lies in /proc itself, and its directories that belong to the machine.
  deny /proc/* wl,
  deny /proc/{acpi,asound,bus,driver,dynamic_debug,fs,irq,scsi,tty}/** wl,
  # Of the kernel's parameters those stay that a namespace has its own of: all
  # of net, message queues in fs, and of kernel domainname, hostname, msg*, sem*
  # and shm*.
  deny /proc/sys/{abi,crypto,debug,dev,sunrpc,user,vm,xen}/** wl,
  deny /proc/sys/fs/{[^m],m[^q]}** wl,
  deny /proc/sys/kernel/{[^dhms],d[^o],h[^o],m[^s],s[^eh]}** wl,
  deny /proc/sys/kernel/{do[^m],ho[^s],ms[^g],se[^m],sh[^m]}** wl,

  # Of /sys only the control groups can be written.
  deny /sys/{[^f],f[^s]}** wlk,
  deny /sys/fs/{[^c],c[^g]}** wlk,
  # What tells secrets of the machine.
  deny /sys/firmware/{,**} rwlkx,
  deny /sys/kernel/{debug,security,tracing}/{,**} rwlkx,
  # How much power the processor takes tells what others compute (CVE-2020-8694).
  deny /sys/devices/virtual/powercap/{,**} rwlkx,
}
`

// profile returns the default profile's source under a name.
func profile(name string) (string, error) {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return "", fmt.Errorf("%q is not a valid name of an AppArmor profile", name)
	}
	return strings.ReplaceAll(text, "NAME", name), nil
}

// plain reports whether r needs no quoting in apparmor.d(5).
func plain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}
