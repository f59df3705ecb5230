package server

import (
	"cmp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Real-time signals as glibc numbers them (signal(7)): it reserves the kernel's first two for
// itself.
const sigRTMin, sigRTMax = unix.Signal(34), unix.Signal(64)

// aliases are CRI's other names of signals.
var aliases = map[string]unix.Signal{"SIGCLD": unix.SIGCHLD, "SIGIOT": unix.SIGABRT, "SIGPOLL": unix.SIGIO}

// linuxSignal returns the signal for CRI's number. Numbers 35 to 65 are the real-time ones,
// SIGRTMIN to SIGRTMAX in order.
func linuxSignal(s cri.Signal) (unix.Signal, bool) {
	if s >= cri.Signal_SIGNAL_SIGRTMIN && s <= cri.Signal_SIGNAL_SIGRTMAX {
		return sigRTMin + unix.Signal(s-cri.Signal_SIGNAL_SIGRTMIN), true
	}
	name := strings.TrimPrefix(cri.Signal_name[int32(s)], "SIGNAL_")
	sig := cmp.Or(aliases[name], unix.SignalNum(name))
	return sig, sig != 0
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
