package main

import (
	"io"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/golden"
	"github.com/crisp-cri/crisp/test/manpage"
)

// The man page is generated from the table of commands: -update writes it.
func TestManPage(t *testing.T) {
	var seen []string
	for _, v := range views {
		seen = append(seen, " "+v.name+": "+v.about)
	}
	page := manpage.Man(commandLine(io.Discard, nil), 8,
		manpage.Section{Title: "DEBUG", Text: "What crispd debug shows of the running crispd:\n\n" + strings.Join(seen, "\n")},
		manpage.Section{Title: "SIGNALS", Text: `SIGTERM, SIGINT: exit within eleven seconds, whatever hangs. Containers keep running, and the next crispd finds them.

SIGHUP: read the configuration again. The log has a line for each changed key, which says whether it applies at once or needs a restart; so does crispd.toml(5). A broken file changes nothing.

SIGUSR1: write the stacks of all goroutines to goroutines.txt in the state directory.`},
		manpage.Section{Title: "SERVICE MANAGER", Text: `With Type=notify crispd tells systemd when it is ready, when it reloads and stops, and how many pods there are. With WatchdogSec= it notifies the watchdog twice in that time, each time after it has answered a call through its own socket.`},
		manpage.Section{Title: "FILES", Text: `/etc/crisp/config.toml, /etc/crisp/config.d/*.toml: the configuration, crispd.toml(5).

/run/crisp/crisp.sock: the socket of the CRI.

/run/crisp/debug.sock: used by crispd debug; only for root.

/run/crisp/cadvisor.sock: where the kubelet's cAdvisor asks which container a cgroup belongs to (kubelet --containerd=/run/crisp/cadvisor.sock); only for root.

/run/crisp/executor.log: the executor's log. It starts anew at 1 MiB; the previous file is executor.log.1.

crispd itself logs to standard error: JSON, or text on a terminal.`},
		manpage.Section{Title: "SEE ALSO", Text: "crispd.toml(5), crisp(1)"})
	golden.Check(t, "../../docs/man/crispd.8", page)
}
