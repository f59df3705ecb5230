// Package apparmor keeps crisp's default AppArmor profile loaded, and reports
// which profiles are loaded.
//
// The kernel accepts only compiled profiles, and apparmor_parser(8) compiles
// them: without it there is no default profile, but profiles that the node has
// loaded by other means can be used.
//
// Loading replaces a profile of the same name at once, for the processes that it
// already confines too. So a newer crispd's profile applies to older containers
// as well, and none is unconfined in between.
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

// securityfs is where the kernel lists its profiles (apparmor(7)).
const securityfs = "/sys/kernel/security/apparmor"

// parseTime bounds one run of the parser.
const parseTime = 30 * time.Second

// Profiles are the profiles of this host's kernel.
type Profiles struct {
	own    string // the name of our default profile
	dir    string
	parser string

	mu sync.Mutex // one parser at a time
}

// New returns the profiles of a host on which AppArmor is enabled. The default
// profile gets the name own.
func New(own string) *Profiles {
	return &Profiles{own: own, dir: securityfs, parser: Parser()}
}

// Parser returns the path of apparmor_parser, "" if it is not installed. It is an administrator's
// program: $PATH need not have its directory.
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
	// Without a cache, which needs a file to be named after.
	if err := p.run(ctx, src, "--replace", "--skip-cache"); err != nil {
		return fmt.Errorf("load AppArmor profile %s: %w", p.own, err)
	}
	return nil
}

// Unload removes the default profile from the kernel, if it is loaded. Processes
// that it confines are unconfined from then on.
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
		return fault.Unavailable.Errorf("apparmor_parser is not installed")
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
// is loaded again after it was unloaded (aa-teardown(8) does so, and a restart of some systems'
// AppArmor service). The error is fault.Invalid for any other that is not loaded.
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

// loaded reports whether the kernel has a profile. A line of the file is a name
// and, in parentheses, a mode; the name may contain spaces.
func (p *Profiles) loaded(name string) (bool, error) {
	f, err := os.Open(filepath.Join(p.dir, "profiles"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, fault.Unavailable.Errorf("AppArmor lists no profiles: is securityfs mounted? %w", err)
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
