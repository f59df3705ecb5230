package podfiles

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fixed are names that are the same in every namespace.
type fixed string

func (f fixed) In(namespace, hosts string) string {
	if strings.Contains(hosts, string(f)) {
		return ""
	}
	return "10.0.0.1\t" + string(f) + "." + namespace + "\n"
}

// Names change in place, in the same file, and what a container writes beside them stays.
func TestNamesInHosts(t *testing.T) {
	root := t.TempDir()
	open := func() *Store {
		s, err := Open(Options{Root: root, LogDir: root + "/logs"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}}
	late := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late", UID: "v"}}
	for _, p := range []*v1.Pod{pod, late} {
		if err := s.Accept(p); err != nil {
			t.Fatal(err)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := s.HostsFile("u")
	is := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	do(s.WriteHosts(pod, "10.0.0.2\tweb\n"))
	is("10.0.0.2\tweb\n")
	before, err := os.Stat(path)
	do(err)
	do(s.Rename(fixed("a-long-name")))
	is("10.0.0.2\tweb\n" + namesBegin + "10.0.0.1\ta-long-name.shop\n" + namesEnd)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	do(err)
	_, err = f.WriteString("10.0.0.3\town\n")
	do(err)
	do(f.Close())
	s = open() // another agent
	do(s.Rename(fixed("db")))
	is("10.0.0.2\tweb\n" + namesBegin + "10.0.0.1\tdb.shop\n" + namesEnd + "10.0.0.3\town\n")
	do(s.Rename(fixed("own")))
	is("10.0.0.2\tweb\n" + namesBegin + namesEnd + "10.0.0.3\town\n")
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("a running container does not see the change: %v", err)
	}
	if _, err := os.Stat(s.HostsFile("v")); err == nil {
		t.Error("a file was made for a pod without one")
	}
	do(s.WriteHosts(late, ""))
	path = s.HostsFile("v")
	is(namesBegin + "10.0.0.1\town.shop\n" + namesEnd)

	// A container has filled its file: the other pods get the new names, and its next container a new file.
	do(os.Truncate(s.HostsFile("u"), maxHosts+1))
	do(s.Rename(fixed("db")))
	if info, err := os.Stat(s.HostsFile("u")); err != nil || info.Size() != maxHosts+1 {
		t.Errorf("a file that a container has filled: %v, %v", info.Size(), err)
	}
	is(namesBegin + "10.0.0.1\tdb.shop\n" + namesEnd)
	do(s.WriteHosts(pod, "10.0.0.2\tweb\n"))
	path = s.HostsFile("u")
	is("10.0.0.2\tweb\n" + namesBegin + "10.0.0.1\tdb.shop\n" + namesEnd)
}
