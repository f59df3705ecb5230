// Package apparmor keeps crisp's default AppArmor profile loaded and tells which
// profiles are.
//
// The kernel takes only compiled profiles, and apparmor_parser(8) is what
// compiles them: without it there is no default profile, but those that the node
// has loaded by other means can be used.
//
// Loading replaces: the kernel exchanges a profile of the same name at once and
// for the processes that are confined by it already, so that a newer crispd's
// profile holds for older containers too, and none is unconfined in between.
package apparmor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Unconfined is the name for no profile.
const Unconfined = "unconfined"

// DefaultName is the default instance's profile; others add their name to it.
const DefaultName = "crisp-default"

// securityfs is where the kernel tells its profiles (apparmor(7)).
const securityfs = "/sys/kernel/security/apparmor"

// parseTime bounds one run of the parser.
const parseTime = 30 * time.Second

// Profiles is the profiles of this host's kernel.
type Profiles struct {
	own    string // the name of the default profile that is ours
	dir    string
	parser string

	mu sync.Mutex // one parser at a time
}

// New returns the profiles of a host on which AppArmor is enabled. The default
// profile gets the name own.
func New(own string) *Profiles {
	return &Profiles{own: own, dir: securityfs, parser: Parser()}
}

// Parser is the path of apparmor_parser, "" if there is none. It is an
// administrator's program: $PATH need not have its directory.
func Parser() string {
	for _, name := range []string{"apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Load compiles and loads the default profile. Repeating it does no harm.
func (p *Profiles) Load(ctx context.Context) error {
	src, err := profile(p.own)
	if err != nil {
		return err
	}
	// Without a cache: it would need a file to be named by.
	if err := p.run(ctx, src, "--replace", "--skip-cache"); err != nil {
		return fmt.Errorf("load AppArmor profile %s: %w", p.own, err)
	}
	return nil
}

// Unload takes the default profile out of the kernel, if it is there. Processes
// that it still confines are unconfined from then on.
func (p *Profiles) Unload(ctx context.Context) error {
	if ok, err := p.loaded(p.own); err != nil || !ok {
		return err
	}
	src, err := profile(p.own)
	if err != nil {
		return err
	}
	if err := p.run(ctx, src, "--remove"); err != nil {
		return fmt.Errorf("unload AppArmor profile %s: %w", p.own, err)
	}
	return nil
}

func (p *Profiles) run(ctx context.Context, src string, args ...string) error {
	if p.parser == "" {
		return fault.Unavailable.Errorf("there is no apparmor_parser")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, parseTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.parser, args...)
	cmd.Stdin = strings.NewReader(src)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", p.parser, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// Check makes sure that a container can be confined by a profile. The default one
// is loaded again if somebody has unloaded it (aa-teardown(8) does, and a restart of some
// systems' AppArmor service); another that is not loaded is fault.Invalid.
func (p *Profiles) Check(ctx context.Context, name string) error {
	if name == "" || name == Unconfined {
		return nil
	}
	ok, err := p.loaded(name)
	switch {
	case err != nil:
		return err
	case ok:
		return nil
	case name == p.own:
		return p.Load(ctx)
	}
	return fault.Invalid.Errorf("AppArmor profile %q is not loaded on this host", name)
}

// loaded looks for a profile among the kernel's. A line of that file is a name
// and, in parentheses, a mode; the name may have blanks.
func (p *Profiles) loaded(name string) (bool, error) {
	f, err := os.Open(filepath.Join(p.dir, "profiles"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, fault.Unavailable.Errorf("AppArmor tells no profiles: is securityfs mounted? %w", err)
	}
	if err != nil {
		return false, fmt.Errorf("list AppArmor profiles: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if i := strings.LastIndex(lines.Text(), " ("); i >= 0 && lines.Text()[:i] == name {
			return true, nil
		}
	}
	return false, lines.Err()
}
