package executor

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// limits are what this process can grant others if it lacks CAP_SYS_RESOURCE: no better OOM
// score and no higher hard limit than its own. Containers that request more get that much, as
// otherwise none could start.
type limits struct {
	bound bool
	score int // lowest oom_score_adj
	log   *slog.Logger
	once  *sync.Once
}

func readLimits(log *slog.Logger) limits {
	l := limits{log: log, once: new(sync.Once)}
	var data [2]unix.CapUserData
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&head, &data[0]); err != nil || data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return l
	}
	l.bound = true
	if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		l.score, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return l
}

// clamp lowers p's requests to what it can get, and logs that once.
func (l *limits) clamp(p *specs.Process) {
	if !l.bound {
		return
	}
	if p.OOMScoreAdj != nil {
		score := l.atLeast(*p.OOMScoreAdj)
		p.OOMScoreAdj = &score
	}
	for i := range p.Rlimits {
		r := &p.Rlimits[i]
		n, ok := rlimits[r.Type]
		var own unix.Rlimit
		if !ok || unix.Getrlimit(n, &own) != nil || r.Hard <= own.Max {
			continue
		}
		l.warnOnce(r.Type, r.Hard, own.Max)
		r.Hard = own.Max
		r.Soft = min(r.Soft, own.Max)
	}
}

// atLeast returns the oom_score_adj for a process that requests adj.
func (l *limits) atLeast(adj int) int {
	if !l.bound || adj >= l.score {
		return adj
	}
	l.warnOnce("oom_score_adj", adj, l.score)
	return l.score
}

func (l *limits) warnOnce(what string, want, got any) {
	l.once.Do(func() {
		l.log.Warn("containers get lower limits than they ask for: no CAP_SYS_RESOURCE", "limit", what, "want", want, "got", got)
	})
}
