package server

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Real-time signals as glibc counts them (signal(7)): it keeps the kernel's
// first two for itself.
const sigRTMin, sigRTMax = unix.Signal(34), unix.Signal(64)

// signals maps CRI's numbers to Linux's. The names of CRI's constants changed
// with 0.37 (SIGTERM became SIGNAL_SIGTERM), so nothing is derived from them.
var signals = map[cri.Signal]unix.Signal{
	cri.Signal_SIGNAL_SIGABRT:   unix.SIGABRT,
	cri.Signal_SIGNAL_SIGALRM:   unix.SIGALRM,
	cri.Signal_SIGNAL_SIGBUS:    unix.SIGBUS,
	cri.Signal_SIGNAL_SIGCHLD:   unix.SIGCHLD,
	cri.Signal_SIGNAL_SIGCLD:    unix.SIGCLD,
	cri.Signal_SIGNAL_SIGCONT:   unix.SIGCONT,
	cri.Signal_SIGNAL_SIGFPE:    unix.SIGFPE,
	cri.Signal_SIGNAL_SIGHUP:    unix.SIGHUP,
	cri.Signal_SIGNAL_SIGILL:    unix.SIGILL,
	cri.Signal_SIGNAL_SIGINT:    unix.SIGINT,
	cri.Signal_SIGNAL_SIGIO:     unix.SIGIO,
	cri.Signal_SIGNAL_SIGIOT:    unix.SIGIOT,
	cri.Signal_SIGNAL_SIGKILL:   unix.SIGKILL,
	cri.Signal_SIGNAL_SIGPIPE:   unix.SIGPIPE,
	cri.Signal_SIGNAL_SIGPOLL:   unix.SIGPOLL,
	cri.Signal_SIGNAL_SIGPROF:   unix.SIGPROF,
	cri.Signal_SIGNAL_SIGPWR:    unix.SIGPWR,
	cri.Signal_SIGNAL_SIGQUIT:   unix.SIGQUIT,
	cri.Signal_SIGNAL_SIGSEGV:   unix.SIGSEGV,
	cri.Signal_SIGNAL_SIGSTKFLT: unix.SIGSTKFLT,
	cri.Signal_SIGNAL_SIGSTOP:   unix.SIGSTOP,
	cri.Signal_SIGNAL_SIGSYS:    unix.SIGSYS,
	cri.Signal_SIGNAL_SIGTERM:   unix.SIGTERM,
	cri.Signal_SIGNAL_SIGTRAP:   unix.SIGTRAP,
	cri.Signal_SIGNAL_SIGTSTP:   unix.SIGTSTP,
	cri.Signal_SIGNAL_SIGTTIN:   unix.SIGTTIN,
	cri.Signal_SIGNAL_SIGTTOU:   unix.SIGTTOU,
	cri.Signal_SIGNAL_SIGURG:    unix.SIGURG,
	cri.Signal_SIGNAL_SIGUSR1:   unix.SIGUSR1,
	cri.Signal_SIGNAL_SIGUSR2:   unix.SIGUSR2,
	cri.Signal_SIGNAL_SIGVTALRM: unix.SIGVTALRM,
	cri.Signal_SIGNAL_SIGWINCH:  unix.SIGWINCH,
	cri.Signal_SIGNAL_SIGXCPU:   unix.SIGXCPU,
	cri.Signal_SIGNAL_SIGXFSZ:   unix.SIGXFSZ,
}

// linuxSignal returns the signal for CRI's number. Numbers 35 to 65 are the
// real-time ones, in order: SIGRTMIN to SIGRTMAX.
func linuxSignal(s cri.Signal) (unix.Signal, bool) {
	if s >= cri.Signal_SIGNAL_SIGRTMIN && s <= cri.Signal_SIGNAL_SIGRTMAX {
		return sigRTMin + unix.Signal(s-cri.Signal_SIGNAL_SIGRTMIN), true
	}
	sig, ok := signals[s]
	return sig, ok
}

// criSignal is the inverse of linuxSignal. Where CRI has two names for one
// signal, it returns the one that Linux uses.
func criSignal(sig unix.Signal) (cri.Signal, bool) {
	if sig >= sigRTMin && sig <= sigRTMax {
		return cri.Signal_SIGNAL_SIGRTMIN + cri.Signal(sig-sigRTMin), true
	}
	name := "SIGNAL_" + unix.SignalName(sig)
	s, ok := cri.Signal_value[name]
	return cri.Signal(s), ok && s != 0
}

// stopSignal returns the signal that stops a container: the request's, else the
// image's (StopSignal of its config, a name or a number), else SIGTERM.
func stopSignal(request cri.Signal, image string) (cri.Signal, error) {
	if request != cri.Signal_SIGNAL_RUNTIME_DEFAULT {
		if _, ok := linuxSignal(request); !ok {
			return 0, fault.Invalid.Errorf("stop signal %d is not known", request)
		}
		return request, nil
	}
	if image == "" {
		return cri.Signal_SIGNAL_SIGTERM, nil
	}
	sig, ok := parseSignal(image)
	if !ok {
		return 0, fault.Invalid.Errorf("stop signal %q of the image is not known", image)
	}
	s, ok := criSignal(sig)
	if !ok {
		return 0, fault.Invalid.Errorf("stop signal %q of the image has no name in CRI", image)
	}
	return s, nil
}

// parseSignal reads "15", "TERM", "SIGTERM", "RTMIN+3", "SIGRTMAX-1".
func parseSignal(text string) (unix.Signal, bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return unix.Signal(n), n > 0 && n <= int(sigRTMax)
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for base, sig := range map[string]unix.Signal{"RTMIN": sigRTMin, "RTMAX": sigRTMax} {
		if rest, ok := strings.CutPrefix(name, base); ok {
			n := 0
			if rest != "" {
				var err error
				if n, err = strconv.Atoi(rest); err != nil {
					return 0, false
				}
			}
			sig += unix.Signal(n)
			return sig, sig >= sigRTMin && sig <= sigRTMax
		}
	}
	sig := unix.SignalNum("SIG" + name)
	return sig, sig != 0
}
