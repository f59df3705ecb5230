package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// defaultPath is $PATH if neither image nor CRI sets it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func process(in Input, caps *specs.LinuxCapabilities) (*specs.Process, error) {
	sc := in.Container.GetLinux().GetSecurityContext()
	argv, err := args(in)
	if err != nil {
		return nil, err
	}
	cwd := cmp.Or(in.Container.GetWorkingDir(), in.Image.WorkingDir, "/")
	if !strings.HasPrefix(cwd, "/") {
		return nil, fault.Invalid.Errorf("working directory %q is not absolute", cwd)
	}
	apparmor, err := appArmor(sc, in.Host)
	if err != nil {
		return nil, err
	}
	envs, err := env(in)
	if err != nil {
		return nil, err
	}
	if err := checkNUL(argv, envs, cwd); err != nil {
		return nil, fmt.Errorf("container %s: %w", in.Container.GetMetadata().GetName(), err)
	}
	// An oom_score_adj of 0 is a value too: the executor's own, which is low, must not be
	// inherited.
	adj := max(int(in.Container.GetLinux().GetResources().GetOomScoreAdj()), in.Host.MinOOMScoreAdj)
	return &specs.Process{
		Terminal:        in.Container.GetTty(),
		User:            specs.User{UID: in.User.UID, GID: in.User.GID, AdditionalGids: mappedGroups(in)},
		Args:            argv,
		Env:             envs,
		Cwd:             cwd,
		Capabilities:    caps,
		Rlimits:         in.Host.Rlimits,
		NoNewPrivileges: sc.GetNoNewPrivs(),
		ApparmorProfile: apparmor,
		OOMScoreAdj:     &adj,
		SelinuxLabel:    in.ProcessLabel,
	}, nil
}

// checkNUL refuses text that the kernel would cut off: an image may contain it. Text from the
// client was checked with the request.
func checkNUL(args, env []string, cwd string) error {
	has := func(s string) bool { return strings.Contains(s, "\x00") }
	if i := slices.IndexFunc(args, has); i >= 0 {
		return fault.Invalid.Errorf("argument %d %q holds a NUL byte", i, args[i])
	}
	if i := slices.IndexFunc(env, has); i >= 0 {
		name, _, _ := strings.Cut(env[i], "=")
		return fault.Invalid.Errorf("environment variable %q holds a NUL byte", name) // the value may be a secret
	}
	if has(cwd) {
		return fault.Invalid.Errorf("working directory %q holds a NUL byte", cwd)
	}
	return nil
}

// args combines CRI's command and args with the image's entrypoint and cmd: a command replaces
// both of the image's, args alone replace cmd.
func args(in Input) ([]string, error) {
	command, args := in.Container.GetCommand(), in.Container.GetArgs()
	if len(command) == 0 {
		command = in.Image.Entrypoint
		if len(args) == 0 {
			args = in.Image.Cmd
		}
	}
	argv := slices.Concat(command, args)
	if len(argv) == 0 || argv[0] == "" {
		return nil, fault.Invalid.Errorf("container %s: no command specified, and the image has none", in.Container.GetMetadata().GetName())
	}
	return argv, nil
}

// env combines, from lowest to highest precedence, our variables, the image's and CRI's. A
// variable keeps its first position and its last value.
func env(in Input) ([]string, error) {
	var e environ
	e.set("PATH", defaultPath)
	if in.Container.GetTty() {
		e.set("TERM", "xterm")
	}
	if in.Hostname != "" {
		e.set("HOSTNAME", in.Hostname)
	}
	e.set("HOME", in.User.Home)
	for _, kv := range in.Image.Env {
		// An image may list a name without a value: ignored.
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			e.set(k, v)
		}
	}
	for _, kv := range in.Container.GetEnvs() {
		if kv.Key == "" || strings.ContainsAny(kv.Key, "=\x00") || strings.Contains(string(kv.Value), "\x00") {
			return nil, fault.Invalid.Errorf("environment variable %q: a name is not empty and has no \"=\", and nothing has a zero byte", kv.Key)
		}
		e.set(kv.Key, string(kv.Value))
	}
	return e.list, nil
}

// An environ is a list of KEY=value without duplicate keys.
type environ struct {
	list []string
	at   map[string]int
}

// set replaces a variable, but not by an empty HOME: runtimes look that up in the image's passwd
// file while they start the container, with more rights than it has (runc and crun do, too).
func (e *environ) set(key, value string) {
	if key == "HOME" && value == "" {
		return
	}
	if i, ok := e.at[key]; ok {
		e.list[i] = key + "=" + value
		return
	}
	if e.at == nil {
		e.at = map[string]int{}
	}
	e.at[key] = len(e.list)
	e.list = append(e.list, key+"="+value)
}

// ExecProcess returns the process of an exec in a container whose own process is p: it has the
// same user, capabilities, environment and limits, but other arguments.
func ExecProcess(p *specs.Process, args []string, tty bool) *specs.Process {
	exec := *p
	exec.Args = args
	exec.Terminal = tty
	exec.ConsoleSize = nil
	if tty && !slices.ContainsFunc(exec.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		exec.Env = append(slices.Clone(exec.Env), "TERM=xterm")
	}
	return &exec
}

// RawEnv returns p's environment as bytes if JSON cannot carry it, or nil if it
// can. CRI: KeyValue.value is bytes; it need not be UTF-8.
func RawEnv(p *specs.Process) [][]byte {
	if !slices.ContainsFunc(p.Env, func(kv string) bool { return !utf8.ValidString(kv) }) {
		return nil
	}
	raw := make([][]byte, len(p.Env))
	for i, kv := range p.Env {
		raw[i] = []byte(kv)
	}
	return raw
}

// appArmor returns the profile that confines the container, "" = none. The new field takes
// precedence over the deprecated string. RuntimeDefault, or no profile, means the node's default
// profile. A host without AppArmor confines no container, as CRI allows; but it refuses a
// profile requested by name. RuntimeDefault is refused where the kernel could confine the
// container but our profile is missing.
func appArmor(sc *cri.LinuxContainerSecurityContext, h Host) (string, error) {
	if sc.GetPrivileged() {
		return "", nil
	}
	kind, ref, asked := cri.SecurityProfile_RuntimeDefault, "", true
	//lint:ignore SA1019 CRI keeps the string for older clients
	switch p, old := sc.GetApparmor(), sc.GetApparmorProfile(); {
	case p != nil:
		kind, ref = p.ProfileType, p.LocalhostRef
	case old == "":
		asked = false
	case old == "runtime/default":
	case old == "unconfined":
		kind = cri.SecurityProfile_Unconfined
	case strings.HasPrefix(old, "localhost/"):
		kind, ref = cri.SecurityProfile_Localhost, strings.TrimPrefix(old, "localhost/")
	default:
		return "", fault.Invalid.Errorf("AppArmor profile %q is neither \"runtime/default\", \"unconfined\" nor \"localhost/…\"", old)
	}

	switch kind {
	case cri.SecurityProfile_Unconfined:
		if h.AppArmor {
			return "unconfined", nil
		}
		return "", nil
	case cri.SecurityProfile_RuntimeDefault:
		if h.AppArmor && h.AppArmorDefault == "" && asked {
			return "", fault.Unavailable.Errorf("the default AppArmor profile could not be loaded: see crispd check")
		}
		if h.AppArmor {
			return h.AppArmorDefault, nil
		}
		return "", nil
	case cri.SecurityProfile_Localhost:
		ref = strings.TrimPrefix(ref, "localhost/")
		if ref == "" {
			return "", fault.Invalid.Errorf("AppArmor profile of type Localhost has no name")
		}
		if !h.AppArmor {
			return "", fault.Invalid.Errorf("AppArmor profile %q: AppArmor is not enabled on this host", ref)
		}
		return ref, nil
	}
	return "", fault.Invalid.Errorf("AppArmor profile type %d is not known", kind)
}
