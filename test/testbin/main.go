// Testbin is the program that the tests run in containers. Built with CGO_ENABLED=0 it
// needs only the kernel, so an image of it is one file.
//
// Its arguments are a script of verbs, done in order:
//
//	print TEXT       a line to stdout
//	eprint TEXT      a line to stderr
//	count N PERIOD   the lines 0, 1, … N-1, one every PERIOD; N < 0: for ever
//	count-until PATH PERIOD
//	                 the lines 0, 1, … until there is a file of that name, and "counted N"
//	sleep DURATION   e.g. 200ms; "for-ever" never ends
//	exit CODE        end here
//	kill SIGNAL      end by that signal, given as a number
//	catch            end with 60 and the number of the first signal, from here on
//	ignore-term      from here on do not end on SIGTERM
//	eat MIB          allocate and touch that much memory
//	env NAME         the variable's value as a line
//	close            close stdin, stdout and stderr
//	cat PATH         a file's content
//	ls PATH          a directory's names, a line each
//	write PATH TEXT  TEXT into a file
//	append PATH TEXT a line of TEXT to a file
//	flood MIB        that many MiB to stdout
//	copy FROM TO     a file, with its mode
//	chmod MODE PATH  an octal mode, as 4755
//	mknod PATH M N   a block device that all may use
//	deep N NAME      N directories of that name, each in the one before
//	await PATH       wait until there is a file of that name
//	await-size W H   wait until the terminal on stdin has that size, in characters
//	run PATH         a program with the rest as its arguments, and wait for it
//	stat PATH        kind, mode, owner and device numbers as a line
//	cwd              the working directory as a line
//	hostname         the host's name as a line
//	view             what the process sees of the kernel: mounts, rights, limits, devices, …
//	ids              uid, gid and supplementary groups as a line
//	status FIELD     that field of /proc/self/status
//	listen ADDR      serve TCP on ADDR in the background, echo what comes
//	udp ADDR         the same over UDP
//	http ADDR TEXT   serve HTTP on ADDR in the background, answering TEXT
//	get URL          the body of URL
//	socket FAMILY    what socket(2) answers for that number, which may be hexadecimal
//	socket32 FAMILY  what the socket call of 32-bit x86 answers
//	socketcall32 FAMILY
//	                 what its socketcall answers for a socket
//	echo-stdin       copy stdin to stdout until it ends
//	fork VERB...     run the rest as a child process and wait for it
//	spawn VERB...    run the rest as a child process and do not wait
//	orphans N        leave N processes behind that have lost their parent, and end soon
//	open N           open N files and keep them; the highest descriptor as a line
//	bomb             start processes without end, and again when there can be no more
//	stop-others      stop every process that it sees, again and again
//
// Without exit it ends with 0 after the last verb.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A script is what is left of the arguments.
type script []string

func (s *script) next() string {
	if len(*s) == 0 {
		fatal("an argument is missing")
	}
	arg := (*s)[0]
	*s = (*s)[1:]
	return arg
}

// rest takes all arguments that are left.
func (s *script) rest() []string {
	args := *s
	*s = nil
	return args
}

var verbs = map[string]func(s *script){
	"print":  func(s *script) { fmt.Println(s.next()) },
	"eprint": func(s *script) { fmt.Fprintln(os.Stderr, s.next()) },
	"count": func(s *script) {
		n := number(s.next())
		count(func(i int) bool { return n < 0 || i < n }, duration(s.next()))
	},
	"count-until": func(s *script) {
		path := s.next()
		fmt.Println("counted", count(func(int) bool { _, err := os.Stat(path); return err != nil }, duration(s.next())))
	},
	"sleep": func(s *script) { time.Sleep(duration(s.next())) },
	"exit":  func(s *script) { os.Exit(number(s.next())) },
	"kill": func(s *script) {
		signal.Reset()
		check(syscall.Kill(os.Getpid(), syscall.Signal(number(s.next()))))
		time.Sleep(time.Second) // until it arrives
	},
	"catch": func(s *script) {
		signals := make(chan os.Signal, 16)
		signal.Notify(signals)
		go func() {
			for s := range signals {
				if s != syscall.SIGURG { // Go's runtime sends it to itself
					os.Exit(60 + int(s.(syscall.Signal)))
				}
			}
		}()
	},
	"ignore-term": func(s *script) { signal.Ignore(syscall.SIGTERM) },
	"eat":         func(s *script) { eat(number(s.next())) },
	"await-size":  func(s *script) { awaitSize(number(s.next()), number(s.next())) },
	"env":         func(s *script) { fmt.Println(os.Getenv(s.next())) },
	"close": func(s *script) {
		for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
			check(f.Close())
		}
	},
	"cat": func(s *script) {
		data, err := os.ReadFile(s.next())
		check(err)
		os.Stdout.Write(data)
	},
	"ls": func(s *script) {
		entries, err := os.ReadDir(s.next())
		check(err)
		for _, e := range entries {
			fmt.Println(e.Name())
		}
	},
	"open": func(s *script) {
		highest := 0
		for range number(s.next()) {
			fd, err := syscall.Open("/", syscall.O_RDONLY, 0)
			check(err)
			highest = max(highest, fd)
		}
		fmt.Println(highest)
	},
	"bomb": func(s *script) {
		for {
			if exec.Command("/proc/self/exe", "sleep", "for-ever").Start() != nil {
				time.Sleep(time.Millisecond)
			}
		}
	},
	"write": func(s *script) { check(os.WriteFile(s.next(), []byte(s.next()), 0o644)) },
	"copy": func(s *script) {
		data, err := os.ReadFile(s.next())
		check(err)
		check(os.WriteFile(s.next(), data, 0o755))
	},
	"append": func(s *script) {
		f, err := os.OpenFile(s.next(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		check(err)
		_, err = f.WriteString(s.next() + "\n")
		check(err)
		check(f.Close())
	},
	"flood": func(s *script) {
		block := make([]byte, 1<<20)
		for range number(s.next()) {
			_, err := os.Stdout.Write(block)
			check(err)
		}
	},
	"chmod": func(s *script) {
		mode, err := strconv.ParseUint(s.next(), 8, 32)
		check(err)
		check(syscall.Chmod(s.next(), uint32(mode)))
	},
	"mknod": func(s *script) {
		path, major, minor := s.next(), number(s.next()), number(s.next())
		check(syscall.Mknod(path, syscall.S_IFBLK, major<<8|minor)) // makedev(3), below 256
		check(syscall.Chmod(path, 0o666))
	},
	"deep": func(s *script) { deep(number(s.next()), s.next()) },
	"await": func(s *script) {
		for path := s.next(); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(path); err == nil {
				break
			}
		}
	},
	"run": func(s *script) {
		cmd := exec.Command(s.next(), s.rest()...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		check(cmd.Run())
	},
	"stat": func(s *script) { stat(s.next()) },
	"view": func(*script) { view() },
	"cwd": func(s *script) {
		dir, err := os.Getwd()
		check(err)
		fmt.Println(dir)
	},
	"hostname": func(s *script) {
		name, err := os.Hostname()
		check(err)
		fmt.Println(name)
	},
	"ids": func(s *script) {
		groups, err := os.Getgroups()
		check(err)
		fmt.Println(os.Getuid(), os.Getgid(), groups)
	},
	"status":       func(s *script) { status(s.next()) },
	"listen":       func(s *script) { listen(s.next()) },
	"udp":          func(s *script) { udp(s.next()) },
	"http":         func(s *script) { serve(s.next(), s.next()) },
	"get":          func(s *script) { get(s.next()) },
	"socket":       func(s *script) { socket("socket", s.next()) },
	"socket32":     func(s *script) { socket("socket32", s.next()) },
	"socketcall32": func(s *script) { socket("socketcall32", s.next()) },
	"echo-stdin": func(s *script) {
		_, err := io.Copy(os.Stdout, os.Stdin)
		check(err)
	},
	"orphans": func(s *script) { child(true, []string{"litter", s.next()}) },
	"litter": func(s *script) { // of orphans, which end when all of them are there
		r, w, err := os.Pipe()
		check(err)
		os.Stdin = r // theirs
		for range number(s.next()) {
			child(false, []string{"echo-stdin"})
		}
		check(w.Close()) // no other process has it
	},
	"stop-others": func(s *script) {
		for {
			_ = syscall.Kill(-1, syscall.SIGSTOP) // not itself, nor the init
		}
	},
	"fork":  func(s *script) { child(true, s.rest()) },
	"spawn": func(s *script) { child(false, s.rest()) },
}

func main() {
	s := script(os.Args[1:])
	for len(s) > 0 {
		name := s.next()
		verb, ok := verbs[name]
		if !ok {
			fatal("unknown verb " + strconv.Quote(name))
		}
		verb(&s)
	}
}

func fatal(what any) {
	fmt.Fprintln(os.Stderr, "testbin:", what)
	os.Exit(125)
}

func check(err error) {
	if err != nil {
		fatal(err)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	check(err)
	return n
}

func duration(s string) time.Duration {
	if s == "for-ever" {
		return 1<<63 - 1
	}
	d, err := time.ParseDuration(s)
	check(err)
	return d
}

// count keeps to its schedule: a late line does not delay the others. It returns the
// number of lines.
func count(another func(int) bool, period time.Duration) (n int) {
	begin := time.Now()
	for ; another(n); n++ {
		fmt.Println(n)
		time.Sleep(time.Until(begin.Add(time.Duration(n+1) * period)))
	}
	return n
}

func eat(mib int) {
	for range mib {
		page := make([]byte, 1<<20)
		for i := 0; i < len(page); i += 4096 {
			page[i] = 1
		}
		eaten = append(eaten, page)
	}
}

var eaten [][]byte

func stat(path string) {
	var st syscall.Stat_t
	check(syscall.Lstat(path, &st))
	info, err := os.Lstat(path)
	check(err)
	// makedev(3): these hold for numbers below 256.
	fmt.Println(info.Mode(), st.Uid, st.Gid, st.Rdev>>8, st.Rdev&0xff)
}

func status(field string) {
	data, err := os.ReadFile("/proc/self/status")
	check(err)
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			fmt.Println(strings.TrimSpace(value))
		}
	}
}

func listen(addr string) {
	l, err := net.Listen("tcp", addr)
	check(err)
	go func() {
		for {
			c, err := l.Accept()
			check(err)
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
}

func udp(addr string) {
	c, err := net.ListenPacket("udp", addr)
	check(err)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			check(err)
			c.WriteTo(buf[:n], from)
		}
	}()
}

func serve(addr, text string) {
	l, err := net.Listen("tcp", addr)
	check(err)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, text)
	}))
}

func get(url string) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	check(err)
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	check(err)
}

func child(wait bool, args []string) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	check(cmd.Start())
	if wait {
		err := cmd.Wait()
		if cmd.ProcessState.ExitCode() > 0 {
			return // the child's own affair
		}
		if _, ok := err.(*exec.ExitError); !ok {
			check(err)
		}
	}
}
