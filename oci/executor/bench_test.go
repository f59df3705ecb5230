package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// Run these with CRISP_BIN set: the test binary is larger than the program.

// BenchmarkRun measures create and start; the removal is outside of the timer.
func BenchmarkRun(b *testing.B) { benchmarkRun(b) }

// BenchmarkRunFiltered is BenchmarkRun with the default seccomp profile.
func BenchmarkRunFiltered(b *testing.B) { benchmarkRun(b, filtered(defaultProfile(b))) }

// BenchmarkRunMapped is BenchmarkRun in a user namespace, of a container like those of crispd.
func BenchmarkRunMapped(b *testing.B) {
	benchmarkRun(b, inUserNamespace(b), func(r *wire.RunRequest, _ *specs.Spec) { r.PrepareDir = filepath.Join(b.TempDir(), r.ID) })
}

func benchmarkRun(b *testing.B, options ...option) {
	n := start(b)
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		c := n.request([]string{"sleep", "for-ever"}, options...)
		b.StartTimer()
		begin := time.Now()
		c.fds = n.call(wire.MethodRun, c.req, &c.reply)
		took = append(took, time.Since(begin))
		b.StopTimer()
		c.signal(unix.SIGKILL, false)
		c.wait()
		c.drop()
		c.delete()
		os.RemoveAll(filepath.Dir(c.root))
		b.StartTimer()
	}
	quantiles(b, took)
	reportCPU(b, n)
}

// BenchmarkExec times an exec of a program that does nothing, and the wait for it.
func BenchmarkExec(b *testing.B) { benchmarkExec(b, 0, false) }

// BenchmarkExecTerminal is BenchmarkExec with a terminal.
func BenchmarkExecTerminal(b *testing.B) { benchmarkExec(b, 0, true) }

// BenchmarkExecBeside is BenchmarkExec beside 500 more containers that run: the executor has
// some descriptors for each.
func BenchmarkExecBeside(b *testing.B) { benchmarkExec(b, 500, false) }

// BenchmarkExecFiltered is BenchmarkExec with the default seccomp profile.
func BenchmarkExecFiltered(b *testing.B) { benchmarkExec(b, 0, false, filtered(defaultProfile(b))) }

func benchmarkExec(b *testing.B, beside int, tty bool, options ...option) {
	n := start(b)
	for range beside {
		n.run([]string{"sleep", "for-ever"})
	}
	c := n.run([]string{"sleep", "for-ever"}, options...)
	src := filepath.Join(b.TempDir(), "true.c")
	if err := os.WriteFile(src, []byte("int main(void) { return 0; }"), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-static", "-Os", "-o", filepath.Join(c.root, "true"), src).CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	p, _ := json.Marshal(&specs.Process{Args: []string{"/true"}, Cwd: "/", Capabilities: &specs.LinuxCapabilities{}, NoNewPrivileges: len(options) > 0})
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		e := c.exec(wire.ExecRequest{Process: p, TTY: tty})
		if code := e.wait(); code != 0 {
			b.Fatalf("exit code %d", code)
		}
		took = append(took, time.Since(begin))
		for _, f := range e.files {
			f.Close()
		}
	}
	quantiles(b, took)
	reportCPU(b, n)
}

// reportCPU reports the CPU time of the executor and of the children that it has reaped.
// Unlike the elapsed time, it hardly depends on the load of the machine.
func reportCPU(b *testing.B, n *node) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:15] { // 14 to 17: utime stime cutime cstime
		t, _ := strconv.Atoi(f)
		ticks += t
	}
	b.ReportMetric(float64(ticks)*10/float64(b.N), "cpu-ms/op")
}

// BenchmarkMemory reports the memory of the executor with 50 running containers that have
// the default seccomp profile; the time means nothing.
func BenchmarkMemory(b *testing.B) {
	n := start(b)
	idle := pss(b, n.cmd.Process.Pid)
	for range 50 {
		n.run([]string{"sleep", "for-ever"}, filtered(defaultProfile(b)))
	}
	full := 0
	for b.Loop() {
		full = pss(b, n.cmd.Process.Pid)
	}
	b.ReportMetric(float64(idle)/1024, "MiB-idle")
	b.ReportMetric(float64(full)/1024, "MiB-50")
	b.ReportMetric(float64(full-idle)/50, "KiB/container")
}

func pss(b *testing.B, pid int) (kib int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		fmt.Sscanf(line, "Pss: %d kB", &kib)
	}
	return kib
}

func quantiles(b *testing.B, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	for i := range took {
		for j := i; j > 0 && took[j] < took[j-1]; j-- {
			took[j], took[j-1] = took[j-1], took[j]
		}
	}
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds())/1000, "ms-p90")
}

// BenchmarkLog reports the cost of a log line: with one container that prints without
// pause, and with fifty that print a line each millisecond. The time means nothing.
func BenchmarkLog(b *testing.B) {
	for _, mode := range []struct {
		name, period string
		containers   int
	}{{"quick", "0s", 1}, {"slow", "1ms", 50}} {
		b.Run(mode.name, func(b *testing.B) {
			n := start(b)
			var all []*box
			for range mode.containers {
				all = append(all, n.run([]string{"count", fmt.Sprint(b.N/mode.containers + 1), mode.period}))
			}
			for _, c := range all {
				c.wait()
			}
			reportCPU(b, n)
		})
	}
}
