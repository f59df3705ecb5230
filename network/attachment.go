package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
)

const (
	attachedDir = "attached" // below CacheDir
	ifName      = "eth0"     // in every pod, as the kubelet and its users expect

	// Raise attachmentVersion when an older release could not detach what a newer one has
	// attached.
	attachmentVersion = 1
)

// An attachment records what DEL and CHECK need to know about ADD. It is on disk before ADD
// runs, because libcni writes its own cache only afterwards: a daemon that died in between would
// leak an address and a device.
type attachment struct {
	Version      int             `json:"version"` // attachmentVersion
	ID           string          `json:"id"`
	Config       json.RawMessage `json:"config"` // the whole list
	NetNS        string          `json:"netns"`
	IfName       string          `json:"ifName"`
	Args         [][2]string     `json:"args"`
	Capabilities map[string]any  `json:"capabilities"`

	// Begun is how many of the plugins, the first ones, have begun an ADD that has failed: only
	// they have something to delete. It is nil unless ADD has failed.
	Begun *int `json:"begun,omitempty"`

	list *libcni.NetworkConfigList // Config, parsed
}

func (n *Network) newAttachment(c *conf, p Pod) *attachment {
	return &attachment{
		Version: attachmentVersion, ID: p.ID, Config: c.list.Bytes, NetNS: p.NetNS, IfName: ifName,
		Args: cniArgs(p), Capabilities: capabilities(p, n.o.PodCIDRs), list: c.list,
	}
}

func (a *attachment) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: a.ID, NetNS: a.NetNS, IfName: a.IfName,
		Args: a.Args, CapabilityArgs: a.Capabilities,
	}
}

func (n *Network) attachmentPath(id string) string {
	return filepath.Join(n.o.CacheDir, attachedDir, id+".json")
}

// saveAttachment does not sync: a power cut loses the files of host-local and similar plugins
// just as easily, and GC finds the rest.
func (n *Network) saveAttachment(a *attachment) error {
	return atomicfile.WriteJSON(n.attachmentPath(a.ID), a)
}

// loadAttachment returns fs.ErrNotExist if id is not attached, and fault.WrongState if a newer
// release has attached it.
func (n *Network) loadAttachment(id string) (*attachment, error) {
	path := n.attachmentPath(id)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a := &attachment{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if a.Version > attachmentVersion {
		return nil, fault.WrongState.Errorf("%s has version %d and was written by a newer crispd; this one reads up to version %d", path, a.Version, attachmentVersion)
	}
	if a.Version != attachmentVersion || a.ID != id {
		return nil, fmt.Errorf("%s is of version %d and for %q", path, a.Version, a.ID)
	}
	if a.list, err = libcni.NetworkConfFromBytes(a.Config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if ports, ok := a.Capabilities["portMappings"].([]any); ok {
		a.Capabilities["portMappings"] = slices.DeleteFunc(ports, noPort)
	}
	return a, nil
}

// noPort reports whether a recorded port mapping is one that plugins refuse to read: ADD has
// failed with it, and so would every DEL. An earlier release let it pass.
func noPort(mapping any) bool {
	m, _ := mapping.(map[string]any)
	for _, key := range []string{"hostPort", "containerPort"} {
		if port, _ := m[key].(float64); port < 1 || port > math.MaxUint16 {
			return true
		}
	}
	return false
}

// attached returns the IDs of all attached pods.
func (n *Network) attached() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(n.o.CacheDir, attachedDir))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && !strings.HasPrefix(id, ".") {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// refuseNewer fails if a newer release has attached a pod. Detach's fallback for a damaged
// attachment would be wrong there.
func (n *Network) refuseNewer() error {
	ids, err := n.attached()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := n.loadAttachment(id); errors.Is(err, fault.WrongState) {
			return err
		}
	}
	return nil
}

type workKey struct{}

// A work is what plugins do for one attachment under its lock.
type work struct {
	lock  *os.File
	begun int // how many plugins have been called and have not refused the version
}

// workOf returns the work that ctx is for, nil if it is for none.
func workOf(ctx context.Context) *work {
	w, _ := ctx.Value(workKey{}).(*work)
	return w
}

// lock gives the caller exclusive use of id's attachment. The plugins must run with the returned
// context.
//
// It is a file lock (flock(2)) that plugins inherit. If the daemon dies during ADD, the plugin
// keeps running; the next daemon's DEL then waits for it instead of deleting what is about to be
// created, and kills it if it does not exit in time (orphan.go).
func (n *Network) lock(ctx context.Context, id string) (_ context.Context, release func(), err error) {
	for {
		f, err := n.openLock(id)
		if err != nil {
			return nil, nil, err
		}
		if err := n.lockFile(ctx, f); err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("wait for the plugins at work on %s: %w", id, err)
		}
		if flock.IsAt(f, f.Name()) {
			working.Store(f.Name(), true)
			return context.WithValue(ctx, workKey{}, &work{lock: f}), func() { n.unlock(f, id) }, nil
		}
		f.Close() // its last holder has removed it: there may be a new file of that name
	}
}

// openLock opens the lock file, which exists from before ADD until after DEL. For an attachment
// of an earlier release openLock has to create it. If the disk is full it cannot be created, nor
// held by another process, and openLock returns the attachment itself as the lock.
func (n *Network) openLock(id string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(n.o.CacheDir, attachedDir, id+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if f, err := os.OpenFile(n.attachmentPath(id), os.O_RDWR, 0); err == nil {
			return f, nil
		}
	}
	return f, err
}

// lockFile polls, so that ctx can end the wait, and kills orphaned plugins.
func (n *Network) lockFile(ctx context.Context, f *os.File) error {
	patience := time.Now().Add(n.orphanLife)
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		if err := flock.Try(f); !errors.Is(err, flock.ErrHeld) {
			return err
		}
		if time.Now().After(patience) {
			if err := endOrphans(ctx, n.log, f); err != nil {
				n.log.WarnContext(ctx, "plugin of a crispd that has ended was not ended", "path", f.Name(), "err", err)
			}
			if gone(f) {
				return nil
			}
			patience = time.Now().Add(n.orphanLife)
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// gone reports whether f has been removed: its lock then excludes no other process.
func gone(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink == 0
}

// unlock unlocks explicitly, because closing f would leave the lock to any daemon that a plugin
// has started. While id is attached the file stays: on a full disk DEL might be unable to create
// it again.
func (n *Network) unlock(f *os.File, id string) {
	working.Delete(f.Name())
	if _, err := os.Stat(n.attachmentPath(id)); errors.Is(err, fs.ErrNotExist) {
		os.Remove(f.Name())
	}
	flock.Unlock(f)
	f.Close()
}

// dropLocks removes free locks whose attachments no longer exist. No Attach may be under way.
func (n *Network) dropLocks() error {
	paths, err := filepath.Glob(filepath.Join(n.o.CacheDir, attachedDir, "*.lock"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		id := strings.TrimSuffix(filepath.Base(path), ".lock")
		if _, err := os.Stat(n.attachmentPath(id)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // its holder has removed it
		}
		errs = append(errs, dropLock(f))
		f.Close()
	}
	return errors.Join(errs...)
}

// dropLock removes a free lock. Since f was opened, its last holder may have removed it, and
// another process may hold a new file of that name.
func dropLock(f *os.File) error {
	if flock.Try(f) != nil {
		return nil
	}
	defer flock.Unlock(f)
	if !flock.IsAt(f, f.Name()) {
		return nil
	}
	return os.Remove(f.Name())
}
