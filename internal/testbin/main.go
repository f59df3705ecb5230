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
//	flood MIB        that many MiB to stdout
//	copy FROM TO     a file, with its mode
//	chmod MODE PATH  an octal mode, as 4755
//	mknod PATH M N   a block device that all may use
//	deep N NAME      N directories of that name, each in the one before
//	await PATH       wait until there is a file of that name
//	run PATH         a program with the rest as its arguments, and wait for it
//	stat PATH        kind, mode, owner and device numbers as a line
//	cwd              the working directory as a line
//	hostname         the host's name as a line
//	ids              uid, gid and supplementary groups as a line
//	status FIELD     that field of /proc/self/status
//	listen ADDR      serve TCP on ADDR in the background, echo what comes
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

func main() {
	args := os.Args[1:]
	next := func() string {
		if len(args) == 0 {
			fatal("an argument is missing")
		}
		a := args[0]
		args = args[1:]
		return a
	}
	for len(args) > 0 {
		switch verb := next(); verb {
		case "print":
			fmt.Println(next())
		case "eprint":
			fmt.Fprintln(os.Stderr, next())
		case "count":
			n := number(next())
			count(func(i int) bool { return n < 0 || i < n }, duration(next()))
		case "count-until":
			path := next()
			fmt.Println("counted", count(func(int) bool { _, err := os.Stat(path); return err != nil }, duration(next())))
		case "sleep":
			time.Sleep(duration(next()))
		case "exit":
			os.Exit(number(next()))
		case "kill":
			signal.Reset()
			check(syscall.Kill(os.Getpid(), syscall.Signal(number(next()))))
			time.Sleep(time.Second) // until it arrives
		case "catch":
			signals := make(chan os.Signal, 16)
			signal.Notify(signals)
			go func() {
				for s := range signals {
					if s != syscall.SIGURG { // Go's runtime sends it to itself
						os.Exit(60 + int(s.(syscall.Signal)))
					}
				}
			}()
		case "ignore-term":
			signal.Ignore(syscall.SIGTERM)
		case "eat":
			eat(number(next()))
		case "env":
			fmt.Println(os.Getenv(next()))
		case "close":
			for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
				check(f.Close())
			}
		case "cat":
			data, err := os.ReadFile(next())
			check(err)
			os.Stdout.Write(data)
		case "ls":
			entries, err := os.ReadDir(next())
			check(err)
			for _, e := range entries {
				fmt.Println(e.Name())
			}
		case "bomb":
			for {
				if exec.Command("/proc/self/exe", "sleep", "for-ever").Start() != nil {
					time.Sleep(time.Millisecond)
				}
			}
		case "write":
			check(os.WriteFile(next(), []byte(next()), 0o644))
		case "copy":
			data, err := os.ReadFile(next())
			check(err)
			check(os.WriteFile(next(), data, 0o755))
		case "flood":
			block := make([]byte, 1<<20)
			for range number(next()) {
				_, err := os.Stdout.Write(block)
				check(err)
			}
		case "chmod":
			mode, err := strconv.ParseUint(next(), 8, 32)
			check(err)
			check(syscall.Chmod(next(), uint32(mode)))
		case "mknod":
			path, major, minor := next(), number(next()), number(next())
			check(syscall.Mknod(path, syscall.S_IFBLK, major<<8|minor)) // makedev(3), below 256
			check(syscall.Chmod(path, 0o666))
		case "deep":
			deep(number(next()), next())
		case "await":
			for path := next(); ; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(path); err == nil {
					break
				}
			}
		case "run":
			cmd := exec.Command(next(), args...)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			check(cmd.Run())
			args = nil
		case "stat":
			stat(next())
		case "cwd":
			dir, err := os.Getwd()
			check(err)
			fmt.Println(dir)
		case "hostname":
			name, err := os.Hostname()
			check(err)
			fmt.Println(name)
		case "ids":
			groups, err := os.Getgroups()
			check(err)
			fmt.Println(os.Getuid(), os.Getgid(), groups)
		case "status":
			status(next())
		case "listen":
			listen(next())
		case "http":
			serve(next(), next())
		case "get":
			get(next())
		case "socket", "socket32", "socketcall32":
			socket(verb, next())
		case "echo-stdin":
			_, err := io.Copy(os.Stdout, os.Stdin)
			check(err)
		case "orphans":
			child(true, []string{"litter", next()})
		case "litter": // of orphans
			for range number(next()) {
				child(false, []string{"sleep", "100ms"})
			}
		case "stop-others":
			for {
				_ = syscall.Kill(-1, syscall.SIGSTOP) // not itself, nor the init
			}
		case "fork", "spawn":
			child(verb == "fork", args)
			args = nil
		default:
			fatal("unknown verb " + strconv.Quote(verb))
		}
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
