package main

import (
	"io"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/cli"
	"github.com/crisp-cri/crisp/internal/golden"
)

// The man page is generated from the table of commands: -update writes it.
func TestManPage(t *testing.T) {
	var seen []string
	for _, v := range views {
		seen = append(seen, " "+v.name+": "+v.about)
	}
	page := cli.Man(commandLine(io.Discard), 8,
		cli.Section{Title: "DEBUG", Text: "What crispd debug can show of the crispd that runs:\n\n" + strings.Join(seen, "\n")},
		cli.Section{Title: "SIGNALS", Text: `SIGTERM, SIGINT: end. Containers run on, and the next crispd finds them.

SIGHUP: read the configuration again. Each key that is different is a line of the log, which says whether it is taken at once or needs a restart; a file that is wrong changes nothing. crispd.toml(5) says it of each key.

SIGUSR1: write the stacks of all goroutines to goroutines.txt in the state directory.`},
		cli.Section{Title: "SERVICE MANAGER", Text: `With Type=notify crispd tells systemd when it answers, when it reloads and when it ends, and how many pods there are. With WatchdogSec= it tells twice in that time that it lives, but only after it was called through its own socket and has answered.`},
		cli.Section{Title: "FILES", Text: `/etc/crisp/config.toml, /etc/crisp/config.d/*.toml: the configuration, crispd.toml(5).

/run/crisp/crisp.sock: the socket of the CRI.

/run/crisp/debug.sock: what crispd debug reads; root's alone.

/run/crisp/cadvisor.sock: where the kubelet's cAdvisor asks whose a cgroup is (kubelet --containerd=/run/crisp/cadvisor.sock); root's alone.

/run/crisp/executor.log: what the executor says. It begins anew at 1 MiB; the file before is executor.log.1.

crispd itself logs to standard error: JSON, or text on a terminal.`},
		cli.Section{Title: "SEE ALSO", Text: "crispd.toml(5), crisp(1)"})
	golden.Check(t, "../../docs/man/crispd.8", page)
}
