package network

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/network/bridge"
)

// A runner runs plugins for libcni: that of package bridge in this process, all others as
// processes. libcni's own exec kills only the plugin when the context ends, and then waits for
// whatever the plugin has started.
type runner struct {
	version.PluginDecoder
	log    *slog.Logger
	bridge bridge.Plugin
}

var _ invoke.Exec = (*runner)(nil)

// A missing is the error of a plugin that is not there.
type missing struct{ error }

// refused reports whether err is of a plugin that cannot be called with its configuration.
func refused(err error) bool {
	if _, ok := errors.AsType[missing](err); ok {
		return true
	}
	switch codeOf(err) {
	case types.ErrIncompatibleCNIVersion, types.ErrUnsupportedField, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig:
		return true
	}
	return false
}

// codeOf returns the CNI code that a plugin gave with its error, 0 without one.
func codeOf(err error) uint {
	if said, ok := errors.AsType[*types.Error](err); ok {
		return said.Code
	}
	return 0
}

// FindInPath returns the path of a plugin, or bridge.Type for the one without a file.
func (r *runner) FindInPath(plugin string, dirs []string) (string, error) {
	if plugin == bridge.Type {
		return plugin, nil
	}
	path, err := invoke.FindInPath(plugin, dirs)
	if err != nil {
		return "", missing{err}
	}
	return path, nil
}

// ExecPlugin runs the plugin at path and returns what it wrote to stdout. When
// ctx ends, the plugin and all its children are killed.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) (out []byte, err error) {
	if path == bridge.Type {
		out, err = r.call(ctx, stdin, env)
	} else {
		out, err = r.exec(ctx, path, stdin, env)
	}
	// A plugin checks the version before it does anything. If it passes on that one of its own
	// plugins has refused it, what it had made so far goes with the namespace.
	if w := workOf(ctx); w != nil && codeOf(err) != types.ErrIncompatibleCNIVersion {
		w.begun++
	}
	return out, err
}

func (r *runner) exec(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	for try := 0; ; try++ {
		out, err := r.run(ctx, path, stdin, env)
		// ETXTBSY: the plugin is being installed.
		if !errors.Is(err, unix.ETXTBSY) || try == 10 {
			return out, err
		}
		if !periodic.Pause(ctx, 200*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// call passes to the plugin in this process what a process would get in its environment.
func (r *runner) call(ctx context.Context, stdin []byte, env []string) ([]byte, error) {
	value := make(map[string]string)
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "CNI_") {
			value[k] = v
		}
	}
	command := value["CNI_COMMAND"]
	if command == "VERSION" {
		var out bytes.Buffer
		err := bridge.Supported.Encode(&out)
		return out.Bytes(), err
	}
	end := stage.Enter(ctx, "cni."+bridge.Type)
	begin := time.Now()
	out, err := r.bridge.Call(ctx, command, &skel.CmdArgs{
		ContainerID: value["CNI_CONTAINERID"],
		Netns:       value["CNI_NETNS"],
		IfName:      value["CNI_IFNAME"],
		Args:        value["CNI_ARGS"],
		Path:        value["CNI_PATH"],
		StdinData:   stdin,
	})
	end()
	r.log.DebugContext(ctx, "plugin ran", "plugin", bridge.Type, "took", time.Since(begin), "err", err)
	return out, err
}

func (r *runner) run(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	name := filepath.Base(path)
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = env
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	// A daemon that a plugin leaves behind may keep our pipes open.
	cmd.WaitDelay = time.Second
	if w := workOf(ctx); w != nil {
		cmd.ExtraFiles = []*os.File{w.lock}
	}
	end := stage.Enter(ctx, "cni."+name)
	begin := time.Now()
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		err = nil
	}
	end()
	r.log.DebugContext(ctx, "plugin ran", "plugin", name, "took", time.Since(begin), "err", err)
	if err == nil {
		return stdout.Bytes(), refuseNull(name, stdout.Bytes())
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("plugin %s was killed: %w", name, cause)
	}
	return nil, pluginError(name, err, stdout.Bytes(), stderr.String())
}

// refuseNull refuses a result with a null in a list, such as "ips": [null], which libcni and its
// types would accept as an element.
func refuseNull(name string, stdout []byte) error {
	var v any
	if json.Unmarshal(stdout, &v) != nil || !nullIn(v) {
		return nil // libcni reports any other fault
	}
	return fmt.Errorf("plugin %s: there is a null in a list of its result: %.1000q", name, stdout)
}

func nullIn(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, in := range v {
			if nullIn(in) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(in any) bool { return in == nil || nullIn(in) })
	}
	return false
}

// pluginError returns the error of a failed plugin from its output. CNI: "error: A non-zero exit
// code and … JSON" on stdout; not all plugins get that far.
func pluginError(name string, err error, stdout []byte, stderr string) error {
	var said types.Error
	if json.Unmarshal(stdout, &said) == nil && said.Msg != "" {
		switch said.Code {
		case types.ErrTryAgainLater, types.ErrPluginNotAvailable, types.ErrLimitedConnectivity:
			return fault.Unavailable.Errorf("plugin %s: %w", name, &said)
		}
		return fmt.Errorf("plugin %s: %w", name, &said)
	}
	text := cmp.Or(strings.TrimSpace(stderr), strings.TrimSpace(string(stdout)))
	if text == "" {
		return fmt.Errorf("plugin %s: %w", name, err)
	}
	return fmt.Errorf("plugin %s: %w: %q", name, err, text)
}
