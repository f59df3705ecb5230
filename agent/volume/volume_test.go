package volume

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// objects provides the objects of a test.
type objects struct {
	mu      sync.Mutex
	maps    map[string]map[string]string
	secrets map[string]map[string][]byte
	claims  map[string]v1.PersistentVolumeClaimSpec
	memory  int64 // limit of pods' memory
}

func (o *objects) ConfigMap(_, name string) (*v1.ConfigMap, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if data, ok := o.maps[name]; ok {
		return &v1.ConfigMap{Data: maps.Clone(data)}, nil
	}
	return nil, fault.NotFound.Errorf("there is no config map %s", name)
}

func (o *objects) Secret(_, name string) (*v1.Secret, error) {
	if data, ok := o.secrets[name]; ok {
		return &v1.Secret{Data: data}, nil
	}
	return nil, fault.NotFound.Errorf("there is no secret %s", name)
}

func (o *objects) Claim(_, name string) (*v1.PersistentVolumeClaim, error) {
	if spec, ok := o.claims[name]; ok {
		return &v1.PersistentVolumeClaim{Spec: spec}, nil
	}
	return nil, fault.NotFound.Errorf("there is no claim %s", name)
}

func (o *objects) Facts(pod *v1.Pod) Facts { return facts{o, pod} }

// facts are those of one pod.
type facts struct {
	*objects
	pod *v1.Pod
}

func (f facts) Field(path string) (string, error) { return path + " of " + f.pod.Name, nil }

func (f facts) Resource(_ *v1.Container, ref *v1.ResourceFieldSelector) (string, error) {
	return ref.Resource + " of " + ref.ContainerName, nil
}

func (f facts) MostMemory() int64 { return f.memory }

func (o *objects) set(name, key, value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.maps[name][key] = value
}

func maker(t *testing.T) (*Maker, *objects) {
	t.Helper()
	testenv.NeedRoot(t, "it mounts")
	o := &objects{
		maps:    map[string]map[string]string{"c": {"a": "1", "b": "2"}},
		secrets: map[string]map[string][]byte{"s": {"key": []byte("hidden")}},
		claims: map[string]v1.PersistentVolumeClaimSpec{
			"p": {AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
			"r": {AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}},
		},
	}
	return New(t.TempDir(), o, o), o
}

// pod has one volume, v, and is removed with the test.
func pod(t *testing.T, m *Maker, source v1.VolumeSource) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"}}
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
	p.Spec.SecurityContext = &v1.PodSecurityContext{}
	t.Cleanup(func() {
		if err := m.Remove(p.UID); err != nil {
			t.Error(err)
		}
	})
	return p
}

func makeAll(t *testing.T, m *Maker, p *v1.Pod) string {
	t.Helper()
	for range 2 { // it is idempotent
		if err := m.Make(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	return m.Path(p, &p.Spec.Volumes[0])
}

func want(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || string(data) != content {
		t.Errorf("%s has %q, %v; want %q", path, data, err, content)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm() != mode {
		t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), mode)
	}
}

func ref(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func TestConfigMap(t *testing.T) {
	m, o := maker(t)
	p := pod(t, m, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c"), DefaultMode: new(int32(0o640))}})
	dir := makeAll(t, m, p)
	want(t, dir+"/a", "1", 0o640)
	want(t, dir+"/b", "2", 0o640)
	before, _ := os.Readlink(dir + "/..data")
	if err := m.Refresh(p); err != nil {
		t.Fatal(err)
	}
	if now, _ := os.Readlink(dir + "/..data"); now != before {
		t.Error("was written anew without a change")
	}
	o.set("c", "a", "one")
	delete(o.maps["c"], "b")
	o.set("c", "d", "4")
	if err := m.Refresh(p); err != nil {
		t.Fatal(err)
	}
	want(t, dir+"/a", "one", 0o640)
	want(t, dir+"/d", "4", 0o640)
	if _, err := os.Lstat(dir + "/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key that went is still there: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, before)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old files are still there: %v", err)
	}
	delete(o.maps, "c")
	if err := m.Refresh(p); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want not found", err)
	}
	want(t, dir+"/a", "one", 0o640) // running pods keep the files
}

// A container may mount a volume inside one with the content of objects, where it cannot make a
// mount point. The directory for it exists, and stays when the objects change.
func TestMountInside(t *testing.T) {
	m, o := maker(t)
	for kind, source := range map[string]v1.VolumeSource{
		"config map": {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c")}},
		"secret":     {Secret: &v1.SecretVolumeSource{SecretName: "s"}},
	} {
		p := pod(t, m, source)
		p.UID = types.UID(strings.Fields(kind)[0])
		p.Spec.Containers = []v1.Container{{Name: "a", VolumeMounts: []v1.VolumeMount{
			{Name: "w", MountPath: "/etc/app/cache/deep"}, {Name: "v", MountPath: "/etc/app/"}, {Name: "w", MountPath: "/etc/application"}, {Name: "w", MountPath: "/etc/app/new"},
		}}}
		dir := makeAll(t, m, p)
		inode := func() uint64 {
			info, err := os.Stat(dir + "/cache/deep")
			if err != nil || !info.IsDir() {
				t.Fatalf("%s: %v, %v", kind, info, err)
			}
			return info.Sys().(*syscall.Stat_t).Ino
		}
		before := inode()
		o.set("c", "a", "changed")
		o.set("c", "new", "is hidden by the mount")
		o.secrets["s"] = map[string][]byte{"key": []byte("changed"), "new": nil}
		if err := m.Refresh(p); err != nil {
			t.Fatal(err)
		}
		if inode() != before {
			t.Errorf("%s: the directory was made anew", kind)
		}
		name := map[string]string{"config map": "a", "secret": "key"}[kind]
		want(t, filepath.Join(dir, name), "changed", 0o644)
		entries, err := os.ReadDir(dir)
		if err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "lication" || e.Name() == "application" }) {
			t.Errorf("%s: the directory has %v, %v", kind, entries, err)
		}
	}
}

// A reader always sees either all old files or all new ones.
func TestUpdateIsAtomic(t *testing.T) {
	m, o := maker(t)
	p := pod(t, m, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c")}})
	dir := makeAll(t, m, p)
	stop, read := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(read)
		for {
			select {
			case <-stop:
				return
			default:
			}
			root, err := os.Open(dir + "/..data/.") // the files of one version
			if errors.Is(err, fs.ErrNotExist) {
				// The link was followed just when the old files were removed; the link
				// itself always exists.
				if _, err = os.Readlink(dir + "/..data"); err == nil {
					continue
				}
			}
			if err != nil {
				read <- err
				return
			}
			at := func(name string) string {
				data, _ := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", root.Fd(), name))
				return string(data)
			}
			// Old files that are being removed after a change do not count.
			if a, b := at("a"), at("b"); a != b && a != "" && b != "" && !(a == "1" && b == "2") {
				read <- fmt.Errorf("saw a=%s with b=%s", a, b)
			}
			root.Close()
		}
	}()
	for i := range 200 {
		o.mu.Lock()
		o.maps["c"] = map[string]string{"a": fmt.Sprint("v", i), "b": fmt.Sprint("v", i)}
		o.mu.Unlock()
		if err := m.Refresh(p); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	for err := range read {
		t.Error(err)
	}
}

// Leftovers of a crash do no harm, and the next change removes them.
func TestUpdateAfterACrash(t *testing.T) {
	m, o := maker(t)
	p := pod(t, m, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c")}})
	dir := makeAll(t, m, p)
	if err := os.Mkdir(dir+"/..2026_01_01_00_00_00.1", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..2026_01_01_00_00_00.1", dir+"/..data_tmp"); err != nil {
		t.Fatal(err)
	}
	o.set("c", "a", "one")
	makeAll(t, m, p)
	want(t, dir+"/a", "one", 0o644)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 { // a, b, ..data and the files
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

func TestSecret(t *testing.T) {
	m, _ := maker(t)
	p := pod(t, m, v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "key", Path: "deep/er/k", Mode: new(int32(0o400))}}}})
	dir := makeAll(t, m, p)
	want(t, dir+"/deep/er/k", "hidden", 0o400)
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil || s.Type != unix.TMPFS_MAGIC {
		t.Errorf("the secret is on a disk: %x, %v", s.Type, err)
	}
	// After a reboot the tmpfs is gone, but its directory exists.
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	makeAll(t, m, p)
	want(t, dir+"/deep/er/k", "hidden", 0o400)
}

func TestWhatIsMissing(t *testing.T) {
	m, _ := maker(t)
	yes := new(true)
	for _, test := range []struct {
		source v1.VolumeSource
		ok     bool
	}{
		{v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("none")}}, false},
		{v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("none"), Optional: yes}}, true},
		{v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c"), Items: []v1.KeyToPath{{Key: "x", Path: "x"}}}}, false},
		{v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c"), Items: []v1.KeyToPath{{Key: "x", Path: "x"}}, Optional: yes}}, true},
		{v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none"}}, false},
		{v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none", Optional: yes}}, true},
		{v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "none"}}, false},
	} {
		p := pod(t, m, test.source)
		err := m.Make(t.Context(), p)
		if (err == nil) != test.ok || err != nil && !errors.Is(err, fault.NotFound) {
			t.Errorf("%+v: %v", test.source, err)
		}
		if err := m.Remove(p.UID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProjected(t *testing.T) {
	m, _ := maker(t)
	p := pod(t, m, v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: new(int32(0o444)), Sources: []v1.VolumeProjection{
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("c"), Items: []v1.KeyToPath{{Key: "a", Path: "conf/a"}}}},
		{Secret: &v1.SecretProjection{LocalObjectReference: ref("s"), Items: []v1.KeyToPath{{Key: "key", Path: "conf/key", Mode: new(int32(0o400))}}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "app", Resource: "limits.cpu"}},
		}}},
	}}})
	dir := makeAll(t, m, p)
	want(t, dir+"/conf/a", "1", 0o444)
	want(t, dir+"/conf/key", "hidden", 0o400)
	want(t, dir+"/labels", "metadata.labels of web", 0o444)
	want(t, dir+"/cpu", "limits.cpu of app", 0o444)
}

func TestFSGroup(t *testing.T) {
	m, _ := maker(t)
	p := pod(t, m, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	p.Spec.Volumes = append(p.Spec.Volumes,
		v1.Volume{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: new(int32(0o400))}}},
		v1.Volume{Name: "p", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}}},
		v1.Volume{Name: "m", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
	)
	p.Spec.SecurityContext.FSGroup = new(int64(1234))
	claim := m.claimDir("default", "p")
	if err := os.MkdirAll(claim, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(claim+"/old", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", claim+"/link"); err != nil {
		t.Fatal(err)
	}
	passwd, err := os.Stat("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	makeAll(t, m, p)
	group := func(path string, mode fs.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 1234 || info.Mode()&mode != mode {
			t.Errorf("%s has group %d and mode %v, want 1234 and %v", path, gid, info.Mode(), mode)
		}
	}
	of := func(i int) string { return m.Path(p, &p.Spec.Volumes[i]) }
	group(of(0), 0o777|fs.ModeSetgid)
	group(of(1)+"/key", 0o440)
	group(of(2), 0o770|fs.ModeSetgid)
	group(of(2)+"/old", 0o660)
	group(of(3), 0o777|fs.ModeSetgid)
	if now, err := os.Stat("/etc/passwd"); err != nil || now.Mode() != passwd.Mode() {
		t.Errorf("a link in a volume led out of it: %v, %v", now.Mode(), err)
	}

	// OnRootMismatch: the directory already matches, so its content is not changed.
	q := pod(t, m, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}})
	q.UID = "u2"
	q.Spec.SecurityContext = p.Spec.SecurityContext.DeepCopy()
	q.Spec.SecurityContext.FSGroupChangePolicy = new(v1.FSGroupChangeOnRootMismatch)
	if err := os.WriteFile(claim+"/new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	makeAll(t, m, q)
	if info, err := os.Stat(claim + "/new"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("OnRootMismatch: %v, %v", info.Mode(), err)
	}
}

// A claim is one directory for all its pods and outlives them.
func TestClaim(t *testing.T) {
	m, _ := maker(t)
	p := pod(t, m, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}})
	dir := makeAll(t, m, p)
	if dir != filepath.Join(m.root, "pvc/default/p") {
		t.Errorf("the claim is at %s", dir)
	}
	if err := os.WriteFile(dir+"/kept", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(p.UID); err != nil {
		t.Fatal(err)
	}
	want(t, dir+"/kept", "x", 0o644)
	r := pod(t, m, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "r"}})
	if m.ReadOnly(p, &p.Spec.Volumes[0]) || !m.ReadOnly(r, &r.Spec.Volumes[0]) {
		t.Error("a claim may be written whose modes do not say so, or the other way round")
	}
}

func TestSubPath(t *testing.T) {
	m, o := maker(t)
	p := pod(t, m, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "c", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c")}}})
	dir := makeAll(t, m, p)
	v, c := &p.Spec.Volumes[0], &p.Spec.Volumes[1]

	at, err := m.SubPath(p, v, "made/here", "app", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at+"/f", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, dir+"/made/here/f", "x", 0o600)
	if again, err := m.SubPath(p, v, "made/here", "app", 0); err != nil || again != at {
		t.Errorf("again: %s, %v", again, err)
	}

	// Links that stay inside the volume are followed, others are rejected.
	secret := t.TempDir()
	for name, target := range map[string]string{
		"inside": "made/here", "absolute": secret, "up": "../../../../../../../../../../" + secret, "deep/up": "../../..", "loop": "loop",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := m.SubPath(p, v, "inside", "app", 1); err != nil {
		t.Error(err)
	} else {
		want(t, at+"/f", "x", 0o600)
	}
	for _, path := range []string{"absolute", "absolute/new", "up", "up/etc", "deep/up", "deep/up/new", "loop", "../v", "/etc"} {
		if at, err := m.SubPath(p, v, path, "app", 2); err == nil || !strings.Contains(err.Error(), "out of") {
			t.Errorf("%s was mounted at %s: %v", path, at, err)
		}
	}
	if entries, _ := os.ReadDir(secret); len(entries) > 0 {
		t.Errorf("something was made outside of the volume: %v", entries)
	}

	// The mount does not follow later changes of a link, nor those of the object until
	// the container starts again.
	file, err := m.SubPath(p, c, "a", "app", 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir + "/inside"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, dir+"/inside"); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(m.subpaths(p.UID), "v/app/1/f"), "x", 0o600)
	o.set("c", "a", "one")
	if err := m.Refresh(p); err != nil {
		t.Fatal(err)
	}
	want(t, m.Path(p, c)+"/a", "one", 0o644)
	want(t, file, "1", 0o644)
	if file, err = m.SubPath(p, c, "a", "app", 3); err != nil {
		t.Fatal(err)
	}
	want(t, file, "one", 0o644)
	if _, err := m.SubPath(p, c, "none", "app", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key that is not there: %v", err)
	}
}

func TestMemory(t *testing.T) {
	m, _ := maker(t)
	limit := resource.MustParse("1Mi")
	p := pod(t, m, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}})
	dir := makeAll(t, m, p)
	if err := os.WriteFile(dir+"/x", make([]byte, 2<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the volume takes more than its limit: %v", err)
	}
	if used, files := Usage(dir); used != 1<<20 || files != 2 {
		t.Errorf("%d bytes in %d files", used, files)
	}
	bind := filepath.Join(dir, "other")
	if err := os.Mkdir(bind, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(t.TempDir(), bind, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(p.UID); err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := unix.Unmount(bind, 0); err != nil {
		t.Fatal(err)
	}
}

// Mounts below a volume propagate to containers that ask for it, even where / is private. All of
// that is gone with the pod.
func TestPropagation(t *testing.T) {
	for name, source := range map[string]v1.VolumeSource{
		"disk":             {EmptyDir: &v1.EmptyDirVolumeSource{}},
		"memory":           {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}},
		"disk of pods":     {EmptyDir: &v1.EmptyDirVolumeSource{}},
		"directory's link": {EmptyDir: &v1.EmptyDirVolumeSource{}},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := maker(t)
			on, kind, from, flags := m.root, "tmpfs", "tmpfs", uintptr(0)
			switch name {
			case "disk of pods":
				on, kind, from, flags = filepath.Join(m.root, "pods"), "", t.TempDir(), unix.MS_BIND
				if err := os.Mkdir(on, 0o700); err != nil {
					t.Fatal(err)
				}
			case "directory's link":
				link := filepath.Join(t.TempDir(), "link")
				if err := os.Symlink(m.root, link); err != nil {
					t.Fatal(err)
				}
				m = New(link, m.objects, m.inputs)
			}
			if err := unix.Mount(from, on, kind, flags, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(on, 0); err != nil {
					t.Error(err)
				}
			})
			if err := unix.Mount("", on, "", unix.MS_PRIVATE, ""); err != nil {
				t.Fatal(err)
			}
			p := pod(t, m, source)
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "other", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
			p.Spec.Containers = []v1.Container{{VolumeMounts: []v1.VolumeMount{
				{Name: "v", MountPropagation: new(v1.MountPropagationHostToContainer), SubPath: "sub"},
				{Name: "other", MountPropagation: new(v1.MountPropagationNone)},
			}}}
			dir := makeAll(t, m, p)
			if mounted, err := mountinfo.Mounted(m.Path(p, &p.Spec.Volumes[1])); err != nil || mounted {
				t.Errorf("a volume without propagation is mounted: %v, %v", mounted, err)
			}
			shown, err := m.SubPath(p, &p.Spec.Volumes[0], "sub", "app", 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Mkdir(dir+"/sub/late", 0o755), unix.Mount("tmpfs", dir+"/sub/late", "tmpfs", 0, "")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+"/sub/late/word", []byte("here"), 0o644); err != nil {
				t.Fatal(err)
			}
			want(t, shown+"/late/word", "here", 0o644)
			if err := unix.Unmount(dir+"/sub/late", 0); err != nil {
				t.Fatal(err)
			}
			if err := m.Remove(p.UID); err != nil {
				t.Fatal(err)
			}
			if left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(on + "/")); err != nil || len(left) > 0 {
				t.Errorf("left are %d mounts, %v", len(left), err)
			}
		})
	}
}

// A volume in memory is limited to the memory that its pod can use.
func TestMemoryBound(t *testing.T) {
	m, o := maker(t)
	o.memory = 2 << 20
	for size, want := range map[string]int64{"": 2 << 20, "0": 2 << 20, "1Mi": 1 << 20, "1Gi": 2 << 20} {
		e := &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}
		if size != "" {
			e.SizeLimit = new(resource.MustParse(size))
		}
		p := pod(t, m, v1.VolumeSource{EmptyDir: e})
		dir := makeAll(t, m, p)
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil || int64(fs.Blocks)*fs.Bsize != want {
			t.Errorf("sizeLimit %q: %d bytes, %v; want %d", size, int64(fs.Blocks)*fs.Bsize, err, want)
		}
		if err := m.Remove(p.UID); err != nil {
			t.Fatal(err)
		}
	}
}

// A Secret never reaches a disk, even if the node swaps.
func TestNothingIsSwapped(t *testing.T) {
	m, _ := maker(t)
	var major, minor int
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err != nil {
		t.Fatal(err)
	} else if n, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); n != 2 {
		t.Fatal(err)
	}
	if major < 6 || major == 6 && minor < 4 {
		t.Skipf("Linux %d.%d has no noswap", major, minor)
	}
	for name, source := range map[string]v1.VolumeSource{
		"secret":       {Secret: &v1.SecretVolumeSource{SecretName: "s"}},
		"projected":    {Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "s"}}}}}},
		"downward API": {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		"memory":       {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}},
	} {
		p := pod(t, m, source)
		dir := makeAll(t, m, p)
		mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
		if err != nil || len(mounts) != 1 {
			t.Errorf("%s is mounted %d times, %v", name, len(mounts), err)
		} else if options := mounts[0].VFSOptions; !slices.Contains(strings.Split(options, ","), "noswap") {
			t.Errorf("%s is mounted with %s", name, options)
		}
		if err := m.Remove(p.UID); err != nil {
			t.Fatal(err)
		}
	}
	if !knows(noSwap) || knows("no-such-option") {
		t.Error("the kernel is taken for another one")
	}
}

// A SIGKILL during the creation of a claim must not leave its directory inaccessible.
func TestClaimIsOpenAtOnce(t *testing.T) {
	m, o := maker(t)
	for i := range 300 {
		name := fmt.Sprintf("new%d", i)
		o.claims[name] = v1.PersistentVolumeClaimSpec{}
		p := pod(t, m, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				info, err := os.Stat(m.claimDir("default", name))
				if err != nil {
					continue
				}
				if info.Mode().Perm() != 0o777 {
					t.Errorf("claim %s was seen with the mode %v", name, info.Mode())
				}
				return
			}
		}()
		makeAll(t, m, p)
		<-done
	}
	if entries, err := os.ReadDir(filepath.Join(m.root, "pvc/default")); err != nil || len(entries) != 300 {
		t.Errorf("%d directories of 300 claims, %v", len(entries), err)
	}
}

// What a container writes below a subPath that was missing belongs to the fsGroup too: the new
// directories have the volume's mode with setgid and, in memory, the sticky bit, as with the kubelet.
func TestSubPathHasTheModeOfItsVolume(t *testing.T) {
	m, _ := maker(t)
	p := pod(t, m, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "m", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}})
	p.Spec.SecurityContext.FSGroup = new(int64(1234))
	makeAll(t, m, p)
	for i, want := range []fs.FileMode{fs.ModeDir | fs.ModeSetgid | 0o777, fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o777} {
		v := &p.Spec.Volumes[i]
		if _, err := m.SubPath(p, v, "new/deep", "a", i); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "new", "new/deep"} {
			info, err := os.Stat(filepath.Join(m.Path(p, v), name))
			if err != nil {
				t.Fatal(err)
			}
			if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode() != want || gid != 1234 {
				t.Errorf("%s of volume %s: mode %v and group %d, want %v and 1234", cmp.Or(name, "the top"), v.Name, info.Mode(), gid, want)
			}
		}
	}
	if err := m.Remove(p.UID); err != nil {
		t.Error(err)
	}
}

// Software on a host is often deployed as an absolute link to the current version. It is
// followed if it stays in the volume.
func TestSubPathByAbsoluteLink(t *testing.T) {
	m, _ := maker(t)
	top := t.TempDir()
	app := filepath.Join(top, "app")
	for _, dir := range []string{filepath.Join(app, "releases/3"), filepath.Join(top, "other")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"current": filepath.Join(app, "releases/3"), "out": filepath.Join(top, "other"), "none": filepath.Join(app, "none/there")} {
		if err := os.Symlink(target, filepath.Join(app, link)); err != nil {
			t.Fatal(err)
		}
	}
	p := pod(t, m, v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: app, Type: new(v1.HostPathUnset)}})
	t.Cleanup(func() {
		if err := m.Remove(p.UID); err != nil {
			t.Error(err)
		}
	})
	for _, path := range []string{"out", "none"} {
		if at, err := m.SubPath(p, &p.Spec.Volumes[0], path, "a", 0); err == nil {
			t.Errorf("%s is mounted at %s", path, at)
		}
	}
	at, err := m.SubPath(p, &p.Spec.Volumes[0], "current", "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	want, err1 := os.Stat(filepath.Join(app, "releases/3"))
	got, err2 := os.Stat(at)
	if err1 != nil || err2 != nil || !os.SameFile(want, got) {
		t.Errorf("another directory is mounted: %v, %v", err1, err2)
	}
}
