package testns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Program runs work in its own namespaces, as a test is run, for a main function that
// needs them as a test does. It returns the exit code: that of work, or 1 if work has
// left something. Where systemd runs, and without root, work runs on the machine itself.
func Program(work func() int) int {
	switch os.Getenv(role) {
	case roleRun:
		return work()
	case roleJoin:
		join()
	case roleInit:
		return initMain()
	}
	if onMachine() {
		return work()
	}
	cmd, done, err := enter(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err = cmd.Start(); err == nil {
		go func() {
			<-ended
			cmd.Process.Kill()
		}()
		err = cmd.Wait()
	}
	err = errors.Join(err, done())
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
