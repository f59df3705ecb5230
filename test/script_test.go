package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testenv"
)

// programs are the programs that a script may leave no process of.
var programs = []string{"crispd", "crisp-executor", "crisp-keeper", "slirp4netns", "crisp-podinit", "crisp", "testbin", "bridge", "host-local", "portmap", "bandwidth", "runsc", "runsc-sandbox", "runsc-gofer", "containerd-shim-runsc-v1", "containerd-shim-runc-v2"}

// TestScript runs script/*.txtar, one behaviour a file. Each is a transcript of what a user
// would do; README.md beside them lists the commands. Each ends with the instance wiped,
// and with a check of the kernel for leftovers.
func TestScript(t *testing.T) { runScripts(t, os.Getenv("CRISP_LAYERS")) }

// TestLayersAsDirectories runs some of them with layers as directories, where TestScript
// uses EROFS if the kernel can mount it.
func TestLayersAsDirectories(t *testing.T) { runScripts(t, "directories", withDirectories...) }

// withDirectories are the scripts about the content of root file systems, and about disks.
var withDirectories = []string{"artifact_volume", "full_disk", "hostile_layer", "image_volumes", "restart_exit_code", "user_namespace"}

// runScripts runs the named scripts, or all, with layers of the given form, "" being the
// default.
func runScripts(t *testing.T, layers string, names ...string) {
	testenv.NeedRoot(t, "the scripts run containers")
	build := buildOnce(t)
	dir := "script"
	var files []string
	for _, name := range names {
		dir, files = "", append(files, filepath.Join("script", name+".txtar"))
	}
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		Files:              files,
		RequireUniqueNames: true,
		WorkdirRoot:        t.TempDir(),
		Setup: func(env *testscript.Env) error {
			before, err := noleaks.Take(programs...)
			if err != nil {
				return err
			}
			n, err := newNode(env.WorkDir, build)
			if err != nil {
				return err
			}
			if err := n.setLayers(layers); err != nil {
				return err
			}
			if tb := env.T().(testing.TB); strings.HasPrefix(filepath.Base(tb.Name()), "shim_") || strings.HasSuffix(tb.Name(), "gvisor") {
				n.hasGVisor(tb, filepath.Join(env.WorkDir, "runsc"))
			}
			env.Values[nodeKey{}] = n
			env.Setenv("ROOT", n.root)
			env.Setenv("STATE", n.state)
			env.Setenv("SOCKET", n.socket)
			env.Setenv("DIR", n.dir)
			env.Setenv("LOGS", filepath.Join(n.dir, "logs"))
			env.Setenv("BIN", build.dir)
			env.Setenv("PATH", build.dir+":"+os.Getenv("PATH"))
			env.Setenv("SHIMS", testenv.Shims())
			env.Setenv("GVISOR_SHIM", testenv.GVisorShim())
			env.Setenv("CRISP_RUNTIME_ENDPOINT", "unix://"+n.socket)
			env.Setenv("GOCOVERDIR", "")
			env.Setenv("IMAGE", testImage)
			env.Setenv("AGENT", n.agentRoot())
			env.Setenv("CRISP_AGENT_ROOT", n.agentRoot())
			if err := os.Mkdir(n.manifests(), 0o755); err != nil {
				return err
			}
			env.Defer(func() {
				tb := env.T().(testing.TB)
				if n.agent != nil {
					if err := n.endAgent(syscall.SIGTERM); err != nil {
						tb.Error(err)
					}
				}
				n.end(tb)
				before.Check(tb, n.mine, programs...)
			})
			return nil
		},
		Condition: build.condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":     withNode((*node).daemonCmd),
			"executor":   withNode((*node).executorCmd),
			"image":      withNode((*node).imageCmd),
			"registry":   withNode((*node).registryCmd),
			"sandbox":    withNode((*node).sandboxCmd),
			"container":  withNode((*node).containerCmd),
			"checkpoint": withNode((*node).checkpointCmd),
			"plugin":     withNode((*node).pluginCmd),
			"http":       withNode((*node).httpCmd),
			"disk":       withNode((*node).diskCmd),
			"nobody":     withNode((*node).nobodyCmd),
			"noleaks":    withNode((*node).noleaksCmd),
			"log-error":  withNode((*node).logErrorCmd),
			"agent":      withNode((*node).agentCmd),
			"manifest":   withNode((*node).manifestCmd),
			"pod":        withNode((*node).podCmd),
			"until":      withNode((*node).untilCmd),
			"exits":      withNode((*node).exitsCmd),
			"crictl":     withNode((*node).crictlCmd),
			"slow":       withNode((*node).slowCmd),
		},
	})
}

// condition reports whether a script's condition, in brackets, holds.
func (b binaries) condition(cond string) (bool, error) {
	switch cond {
	case "exit-by-pidfd": // without it, a crash of the executor loses the exit codes of its children
		return kernel.Probe().PidfdInfo, nil
	case "apparmor", "cgroup2", "criu", "enforcing", "gvisor", "idmap", "selinux", "shims", "slirp4netns", "systemd":
		return testenv.Lacks(cond) == "", nil
	case "ia32":
		// A kernel that has the calls may forbid them: by ia32_emulation=0 (Linux 6.7), or in some
		// virtual machines.
		return kernel.Probe().IA32 && exec.Command(b.testbin, "socket32", "2").Run() == nil, nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}
