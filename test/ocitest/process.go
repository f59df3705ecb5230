package ocitest

import (
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A process is one fake process: a goroutine that runs its script.
type process struct {
	out   func(stream, line string)
	stdin io.Reader
	spawn func(script []string) // starts a child that no process waits for

	killed chan struct{} // closed by SIGKILL
	kill   func()
	sigs   chan unix.Signal
	done   chan struct{} // closed when it has ended
	code   int32         // set before done is closed
	oom    bool          // likewise
}

func newProcess(out func(stream, line string), stdin io.Reader, spawn func([]string)) *process {
	p := &process{
		out: out, stdin: stdin, spawn: spawn,
		killed: make(chan struct{}), sigs: make(chan unix.Signal, 16), done: make(chan struct{}),
	}
	p.kill = sync.OnceFunc(func() { close(p.killed) })
	return p
}

func (p *process) signal(sig unix.Signal) {
	if sig == unix.SIGKILL {
		p.kill()
		return
	}
	select {
	case p.sigs <- sig:
	default: // pending already
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// runScript runs the script and exits.
func (p *process) runScript(args []string) {
	defer close(p.done)
	script := []string{"sleep", "for-ever"}
	if strings.HasSuffix(args[0], "testbin") {
		script = args[1:]
	}
	p.code = p.do(script)
}

func (p *process) do(script []string) int32 {
	ignore, catch := false, false
	for i := 0; i < len(script); i++ {
		verb, arg := script[i], ""
		if i+1 < len(script) {
			arg = script[i+1]
		}
		switch verb {
		case "print", "eprint":
			p.out(map[string]string{"print": "stdout", "eprint": "stderr"}[verb], arg)
			i++
		case "sleep":
			if code, ended := p.sleep(arg, ignore, catch); ended {
				return code
			}
			i++
		case "exit", "kill":
			n, _ := strconv.Atoi(arg)
			if verb == "kill" {
				n += 128
			}
			return int32(n)
		case "ignore-term":
			ignore = true
		case "catch":
			catch = true
		case "eat":
			p.oom = true
			return 128 + int32(unix.SIGKILL)
		case "echo-stdin":
			if code, ended := p.echo(); ended {
				return code
			}
		case "spawn":
			p.spawn(script[i+1:])
			return 0
		default:
			return 125
		}
	}
	return 0
}

// sleep waits; it returns the exit code of a signal that ended the process.
func (p *process) sleep(arg string, ignore, catch bool) (int32, bool) {
	d, err := time.ParseDuration(arg)
	if err != nil {
		d = 1<<63 - 1 // for-ever
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-p.killed:
			return 128 + int32(unix.SIGKILL), true
		case sig := <-p.sigs:
			switch {
			case ignore && sig == unix.SIGTERM:
			case catch:
				return 60 + int32(sig), true
			default:
				return 128 + int32(sig), true
			}
		case <-timer.C:
			return 0, false
		}
	}
}

// echo copies stdin to stdout, line by line.
func (p *process) echo() (int32, bool) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		data := make([]byte, 4096)
		for p.stdin != nil {
			n, err := p.stdin.Read(data)
			if n > 0 {
				p.out("stdout", strings.TrimSuffix(string(data[:n]), "\n"))
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case <-p.killed:
		return 128 + int32(unix.SIGKILL), true
	case sig := <-p.sigs:
		return 128 + int32(sig), true
	case <-over:
		return 0, false
	}
}
