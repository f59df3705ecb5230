package fastinit

import (
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// Exec plans a process in a running container, whose init must be passed to Start.
func Exec(config *configs.Config, q Process, id string) (*Plan, error) {
	switch {
	case config.RootlessEUID, config.ProcessLabel != "", config.Umask != nil, config.Personality != nil, config.MemoryPolicy != nil,
		config.IntelRdt != nil, config.Scheduler != nil, config.IOPriority != nil, config.ExecCPUAffinity != nil,
		len(config.TimeOffsets) > 0, !SeccompSupported(config.Seccomp):
		return nil, ErrUnsupported
	}
	p := &Plan{}
	flags := 0
	for _, ns := range config.Namespaces {
		flag, ok := flagOf[ns.Type]
		if !ok {
			return nil, ErrUnsupported
		}
		flags |= flag
	}
	if flags&unix.CLONE_NEWNS == 0 {
		return nil, ErrUnsupported
	}
	p.add(stepJoin, "join the container's namespaces", extraFD, flags)
	if flags&unix.CLONE_NEWPID != 0 {
		p.fork()
	}
	if !config.NoNewKeyring {
		p.add(stepKeyring, "join session keyring", "_ses."+id, 0)
	}
	p.add(stepWait, "wait for the executor")
	return p, p.process(q)
}
