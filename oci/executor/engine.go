package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/oomscore"
)

// An engine is an OCI runtime, a program such as runc or crun, in place of libcontainer for one
// container. It creates, starts, updates and deletes; once it has exited, the container's
// processes are children of the executor, which is a subreaper, and everything else is as with
// libcontainer.
//
// Data that must outlive the executor is in the container's bundle: a container with a bundle
// there is an engine's.
type engine struct {
	Path    string            // of the program
	Systemd bool              // systemd makes its cgroups
	OwnPID  bool              // as container.ownPID
	Cgroups map[string]string // as container.ref.Cgroups
	Score   int               // oom_score_adj of the program and of its children, including hooks

	all *engines
	id  string
	dir string // the bundle
}

// An engines has what the containers of OCI runtimes share.
type engines struct {
	root     string // libcontainer's state directory
	state    string // Options.State
	log      *slog.Logger
	reaper   *reaper
	serials  atomic.Uint64
	subgroup sync.Map // path of an engine → whether it has engine.subgroups
}

// engineTime bounds one call of an engine: a longer one hangs.
const engineTime = time.Minute

// bundle returns the directory of container id, if an engine runs it.
func (a *engines) bundle(id string) string { return filepath.Join(a.root, "bundles", id) }

// create creates the bundle of a container.
func (a *engines) create(id, path string, systemd bool, config *configs.Config) (*engine, error) {
	if !filepath.IsAbs(path) || filepath.Base(id) != id {
		return nil, fault.Invalid.Errorf("engine %q of container %q is not an absolute path", path, id)
	}
	groups, err := manager.New(config.Cgroups)
	if err != nil {
		return nil, fault.Invalid.Errorf("cgroup of container %s: %w", id, err)
	}
	e := &engine{
		Path: path, Systemd: systemd, OwnPID: config.Namespaces.IsPrivate(configs.NEWPID),
		Cgroups: groups.GetPaths(), all: a, id: id, dir: a.bundle(id),
	}
	if config.OomScoreAdj != nil {
		e.Score = *config.OomScoreAdj
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, err
	}
	return e, e.save()
}

// find returns the engine of a container from its bundle; nil = it is libcontainer's.
func (a *engines) find(id string) *engine {
	e := &engine{all: a, id: id, dir: a.bundle(id)}
	if atomicfile.ReadJSON(filepath.Join(e.dir, "engine.json"), e) != nil {
		return nil
	}
	return e
}

func (e *engine) save() error { return atomicfile.SaveJSON(filepath.Join(e.dir, "engine.json"), e) }

// settle drops the hierarchies in which the engine did not put the process: older engines do not
// know the v2 hierarchy of a hybrid host.
func (e *engine) settle(pid int) error {
	for controller, dir := range e.Cgroups {
		if pids, err := cgroups.GetPids(dir); err != nil || !slices.Contains(pids, pid) {
			delete(e.Cgroups, controller)
		}
	}
	return e.save()
}

// put writes a file of the bundle.
func (e *engine) put(name string, v any) (path string, err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	path = filepath.Join(e.dir, name)
	return path, os.WriteFile(path, data, 0o600)
}

// call runs the engine until it exits. ends, if not nil, is its stdio, inherited by a process
// that it starts; extra become descriptors 3 and on.
func (e *engine) call(ctx context.Context, ends *stdioEnds, extra []*os.File, args ...string) error {
	defer e.all.reaper.expectChild()()
	ctx, cancel := context.WithTimeout(ctx, engineTime)
	defer cancel()
	log := filepath.Join(e.dir, "log."+args[0]+"."+e.all.serial())
	defer os.Remove(log)
	all := []string{"--root", e.root(), "--log", log, "--log-format", "json"}
	if e.Systemd {
		all = append(all, "--systemd-cgroup")
	}
	cmd := oomscore.Set(exec.Command(e.Path, append(all, args...)...), e.Score)
	cmd.Dir = e.dir
	cmd.Env = append(os.Environ(), owner(e.all.root, e.id))
	cmd.ExtraFiles = extra
	if ends != nil && ends.theirs[1] != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = ends.theirs[0], ends.theirs[1], ends.theirs[2]
	}
	what := e.Path + " " + args[0] + " of container " + e.id
	err := attempt(ctx, what, nil, func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		if ctx.Err() != nil { // it was given up before the fork
			_ = cmd.Process.Kill()
		}
		return cmd.Wait()
	}, nil)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if text := lastError(log); text != "" {
		return &complaint{shortError(errors.New(text))}
	}
	return fault.Internal.Errorf("%s: %w", what, err)
}

// A complaint is what an engine says has failed.
type complaint struct{ error }

func (c *complaint) Unwrap() error { return c.error }

// errno returns the error of the kernel at the end of a complaint; 0 = none.
func (c *complaint) errno() unix.Errno {
	text := strings.ToLower(c.Error())
	for e := unix.EPERM; e <= unix.EHWPOISON; e++ {
		if strings.HasSuffix(text, ": "+e.Error()) {
			return e
		}
	}
	return 0
}

var enginePrefix = regexp.MustCompile(`^(\S+ )?(create|start|exec|update|delete) failed: `)

// lastError returns the last error in an engine's log.
func lastError(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	text := ""
	for line := range strings.Lines(string(data)) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			text = entry.Msg
		}
	}
	return enginePrefix.ReplaceAllString(text, "")
}

// serial returns a number that is unique in this executor.
func (a *engines) serial() string { return strconv.FormatUint(a.serials.Add(1), 36) }

// pidOf reads the PID that the engine wrote to --pid-file, and protects the process from being
// reaped as an orphan.
func (e *engine) pidOf(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, fault.Internal.Errorf("%s reported no process: %w", e.Path, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return 0, fault.Internal.Errorf("%s reported process %q", e.Path, data)
	}
	e.all.reaper.know(pid)
	return pid, nil
}

// update implements ociRuntime.
func (e *engine) update(r *specs.LinuxResources, _ *int) error {
	file, err := e.put("resources.json", r)
	if err != nil {
		return err
	}
	err = e.call(context.Background(), nil, nil, "update", "--resources", file, e.id)
	if said := new(complaint); errors.As(err, &said) {
		if no := said.errno(); no != 0 {
			return kindOfErrno(no).Errorf("%w", err)
		}
		return fault.Invalid.Errorf("%w", err)
	}
	return err
}

// remove implements ociRuntime: it has the engine delete the container, and kill it if it still
// runs. If the engine fails, remove does without it: an engine that is no longer installed must
// not keep a container for ever.
func (e *engine) remove() error {
	if err := e.call(context.Background(), nil, nil, "delete", "--force", e.id); err != nil {
		if err := endAll(e.Cgroups); err != nil {
			return fault.Unavailable.Errorf("remove container %s: %w", e.id, err)
		}
		e.all.log.Warn("engine did not delete the container", "container", e.id, "err", err)
		if err := cgroups.RemovePaths(maps.Clone(e.Cgroups)); err != nil {
			return fault.Unavailable.Errorf("remove cgroup of container %s: %w", e.id, err)
		}
		if err := os.RemoveAll(filepath.Join(e.root(), e.id)); err != nil {
			return err
		}
	}
	return os.RemoveAll(e.dir)
}

// sweep implements ociRuntime.
func (e *engine) sweep() error {
	if err := endAll(e.Cgroups); err != nil {
		return err
	}
	return e.remove()
}

// facts implements ociRuntime.
func (e *engine) facts() (ownPID bool, groups map[string]string, err error) {
	return e.OwnPID, e.Cgroups, nil
}

// checkpoint implements ociRuntime.
func (e *engine) checkpoint(context.Context, string, *child) error {
	return fault.WrongState.Errorf("container %s is run by %s: only libcontainer's can be checkpointed", e.id, e.Path)
}

// root returns the engine's own state directory.
func (e *engine) root() string {
	return filepath.Join(e.all.root, "engines", strings.ReplaceAll(strings.Trim(e.Path, "/"), "/", "-"))
}

// subgroups implements ociRuntime. It looks for a flag that runc has had since 1.1 and crun
// since 1.6, on cgroup v2 only.
func (e *engine) subgroups() bool {
	if known, ok := e.all.subgroup.Load(e.Path); ok {
		return known.(bool)
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	help, err := oomscore.Set(exec.CommandContext(ctx, e.Path, "exec", "--help"), 0).CombinedOutput()
	text := string(help)
	can := err == nil && strings.Contains(text, "--cgroup") &&
		(cgroups.IsCgroup2UnifiedMode() || strings.Contains(text, "<controller>"))
	if err == nil { // else the failure may be transient
		e.all.subgroup.Store(e.Path, can)
	}
	return can
}

// groupFlag returns the --cgroup flag for a result of makeGroup.
func groupFlag(group map[string]string) []string {
	for controller, name := range group {
		if controller != "" {
			name = controller + ":" + name
		}
		return []string{"--cgroup", name}
	}
	return nil
}

// preserve returns the flag that passes n additional descriptors.
func preserve(n int) []string {
	if n == 0 {
		return nil
	}
	return []string{"--preserve-fds", fmt.Sprint(n)}
}
