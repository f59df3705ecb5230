package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/shim"
)

// ErrShimGone is found in the error of a container whose shim ended under it.
var ErrShimGone = errors.New("its shim has ended")

// killedCode is the exit code of a container that ended with its shim, as of one that was killed.
const killedCode = 128 + int32(unix.SIGKILL)

// mostLost bounds how often a shim may drop its connection in a row.
const mostLost = 20

// await waits for a process, and says how it has ended. If Wait fails, the shim's State decides.
func (t *Task) await(exec string, p *proc.Process) {
	lost := 0
	for pause := backoff.New(10*time.Millisecond, time.Second); ; time.Sleep(pause.Next()) {
		select {
		case <-p.Ended():
			return
		default:
		}
		began := time.Now()
		exit, err := t.wait(exec, p)
		switch {
		case err == nil:
			t.ended(p, exit)
			return
		case refuses(err):
			t.gone(p)
			return
		case fault.KindOf(err) == fault.NotFound:
			p.End(255, time.Now(), fault.Internal.Errorf("exit code lost: %v", err))
			return
		}
		if time.Since(began) > time.Minute {
			lost = 0
		}
		if lost++; lost > mostLost {
			t.killShim("it does not let its containers be waited for: " + err.Error())
			t.gone(p)
			return
		}
	}
}

// wait asks for the end of a process; that of an exec comes at the latest with its container's.
func (t *Task) wait(exec string, p *proc.Process) (exit *shim.Exit, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dial, stop := context.WithTimeout(ctx, shimCall)
	client, err := t.client(dial)
	stop()
	if err != nil {
		return nil, err
	}
	if exec != "" && t.process != nil {
		go func() {
			select {
			case <-t.process.Ended():
				select {
				case <-time.After(execEnd):
					p.End(killedCode, time.Now(), nil)
				case <-ctx.Done():
				}
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	if exec == "" && t.isSandbox() {
		exit, err = client.WaitSandbox(ctx, t.id)
	} else {
		exit, err = client.Wait(ctx, t.id, exec)
	}
	if err == nil || errors.Is(err, shim.ErrLost) || fault.KindOf(err) == fault.NotFound {
		return exit, err
	}
	if state, serr := t.state(exec); serr == nil && state.Status == shim.Stopped {
		return state.Exit, nil
	}
	return nil, err
}

func (t *Task) state(exec string) (state *shim.State, err error) {
	err = t.askAnyway(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		if exec == "" && t.isSandbox() {
			state, err = c.SandboxStatus(ctx, t.id)
		} else {
			state, err = c.State(ctx, t.id, exec)
		}
		return err
	})
	return state, err
}

// refuses reports whether an error of a connection says that there is no shim any more.
func refuses(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// gone says that the process has ended with its shim.
func (t *Task) gone(p *proc.Process) {
	l := t.link()
	l.mu.Lock()
	why := l.why
	l.mu.Unlock()
	text := fmt.Sprintf("shim %s ended under the container", t.Path)
	if why != "" {
		text = fmt.Sprintf("shim %s was killed: %s", t.Path, why)
	}
	if words := l.words(); words != "" {
		text += "; it printed: " + words
	}
	p.End(killedCode, time.Now(), &goneError{text})
}

type goneError struct{ text string }

func (e *goneError) Error() string { return e.text }
func (e *goneError) Unwrap() error { return ErrShimGone }

// Signal signals the container's process, or all. It is no error if it has ended. A shim that does
// not answer to SIGKILL is killed.
func (t *Task) Signal(sig unix.Signal, all bool) error {
	if end := t.dump.Load(); end != nil && sig == unix.SIGKILL {
		(*end)() // it may keep the shim from other calls
	}
	err := t.askAnyway(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		if t.isSandbox() {
			return c.StopSandbox(ctx, t.id, stopWithin)
		}
		return c.Kill(ctx, t.id, "", int(sig), all)
	})
	if sig == unix.SIGKILL {
		if errors.Is(err, context.DeadlineExceeded) {
			t.killShim("it did not answer when the container had to end")
			return nil
		}
		t.insist.Do(func() { go t.seeTo() })
	}
	if fault.KindOf(err) == fault.NotFound || refuses(err) {
		return nil
	}
	return reported(err)
}

const (
	// endLook is how often a shim is asked for the state of a container that was killed, endPatience
	// how long that may take to end: then its shim is killed.
	endLook     = 5 * time.Second
	endPatience = time.Minute
)

// seeTo sees to it that a container that was killed ends.
func (t *Task) seeTo() {
	for late := time.Now().Add(endPatience); ; {
		select {
		case <-t.process.Ended():
			return
		case <-time.After(endLook):
		}
		state, err := t.state("")
		switch {
		case err == nil && state.Status == shim.Stopped:
			t.ended(t.process, state.Exit) // Wait hangs
			return
		case errors.Is(err, context.DeadlineExceeded):
			t.killShim("it did not say whether the killed container has ended")
			return
		case time.Now().After(late):
			t.killShim("the container did not end when it was killed")
			return
		}
	}
}

// killShim kills the shim outright. The containers that it runs end with it.
func (t *Task) killShim(why string) {
	if t.Address == nil {
		return
	}
	l := t.link()
	l.mu.Lock()
	if l.why == "" {
		l.why = why
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), shimCall)
	defer cancel()
	err := t.Address.Kill(ctx, t.ShimPID)
	t.all.log.Warn("shim was killed", "container", t.id, "shim", t.Path, "why", why, "err", err)
}

// Forget has the shim forget the container, which has ended and whose exit is on disk; what the
// container has left ends with that.
func (t *Task) Forget() {
	if t.Deleted || t.isSandbox() { // the shim has the exit codes of a sandbox's containers
		return
	}
	if err := t.discard(); err != nil {
		t.all.log.Warn("shim did not forget its container", "container", t.id, "err", err)
		return
	}
	t.letGo()
	t.note(func() { t.Deleted = true })
}

// discard ends the container, and has its shim forget it; without the shim if that does not do it.
func (t *Task) discard() error {
	forget := t.deleteTask
	if t.isSandbox() {
		forget = t.shutSandbox
	}
	err := forget()
	if err == nil || fault.KindOf(err) == fault.NotFound {
		return t.endGroup()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.killShim("it did not answer when it had to delete the container")
	}
	ctx, cancel := context.WithTimeout(context.Background(), shimCall)
	defer cancel()
	_, derr := t.program().Delete(ctx)
	if derr == nil {
		return t.endGroup()
	}
	if gerr := t.endGroup(); gerr != nil {
		return errors.Join(gerr, derr, err)
	}
	t.all.log.Warn("shim's program did not delete the container", "container", t.id, "err", derr)
	return nil
}

// deleteTask has the shim end the container and forget it.
func (t *Task) deleteTask() error {
	return t.askAnyway(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error {
		if t.process == nil || !t.process.Ending() {
			_ = c.Kill(ctx, t.id, "", int(unix.SIGKILL), true) // Delete says whether it has ended
			state, err := c.State(ctx, t.id, "")
			if err != nil || state.PID != 0 { // else it was not restored, and has no process
				_, _ = c.Wait(ctx, t.id, "")
			}
		}
		_, err := c.Delete(ctx, t.id, "")
		return err
	})
}

// endGroup ends what runs in the container's own cgroups.
func (t *Task) endGroup() error {
	if len(t.Group) == 0 {
		return nil
	}
	return proc.End(proc.InCgroup(t.Group))
}

// Remove implements Runtime. The shim ends with the container that it was started for.
func (t *Task) Remove() error {
	t.all.forget(t)
	if t.Deleted {
		if err := t.endGroup(); err != nil {
			return err
		}
	} else if err := t.discard(); err != nil {
		return fault.Unavailable.Errorf("remove container %s: %v", t.id, err)
	} else {
		t.letGo()
	}
	if t.Sandbox == t.id {
		if err := t.endShim(); err != nil {
			return err
		}
	}
	if err := cgroups.RemovePaths(maps.Clone(t.Group)); err != nil {
		return fault.Unavailable.Errorf("remove cgroup of container %s: %w", t.id, err)
	}
	if err := unmountBelow(t.dir); err != nil {
		return fault.Unavailable.Errorf("remove container %s: %w", t.id, err)
	}
	return removeBundle(t.dir)
}

// removeBundle removes a bundle in which processes of a shim may still write, as runc does to its
// log, after the shim has said that the container is deleted.
func removeBundle(dir string) error {
	for wait := bundleRetry; ; wait *= 2 {
		err := os.RemoveAll(dir)
		if !errors.Is(err, unix.ENOTEMPTY) || wait > bundlePatience {
			return err
		}
		time.Sleep(wait)
	}
}

// The pauses between attempts to remove a bundle double from bundleRetry up to bundlePatience.
const (
	bundleRetry    = 5 * time.Millisecond
	bundlePatience = time.Second
)

// sweep implements Runtime.
func (t *Task) sweep() error { return t.Remove() }

// shutPatience bounds how long a shim may take to end by itself.
const shutPatience = 5 * time.Second

// endShim ends the shim that was started for t, by its own means if it does that.
func (t *Task) endShim() error {
	l := t.link()
	if t.Address != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutPatience)
		defer cancel()
		if client, err := t.client(ctx); err == nil {
			_ = client.Shutdown(ctx, t.id, true)
			select {
			case <-client.Done():
			case <-ctx.Done():
			}
			client.Close()
		}
		ctx, cancel = context.WithTimeout(context.Background(), shimCall)
		defer cancel()
		if err := t.Address.Kill(ctx, t.ShimPID); err != nil {
			return fault.Unavailable.Errorf("end shim of container %s: %v", t.id, err)
		}
		if info, err := os.Lstat(t.Address.Path); err == nil && info.Mode()&os.ModeSocket != 0 {
			_ = os.Remove(t.Address.Path) // one that was killed leaves it
		}
	}
	// One that was being started when its executor died has not told its address.
	if err := proc.End(proc.Marked(proc.Mark(t.all.root, t.id))); err != nil {
		return err
	}
	l.mu.Lock()
	if l.output != nil {
		l.output.Close()
		l.output = nil
	}
	l.mu.Unlock()
	t.all.mu.Lock()
	delete(t.all.links, t.id)
	t.all.mu.Unlock()
	return nil
}

// unmountBelow unmounts what a shim has mounted in a bundle, the last mount first.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return &os.PathError{Op: "unmount", Path: m.Mountpoint, Err: err}
		}
	}
	return nil
}
