package selinux

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// policy returns a policy with a few types that assigns categories in order.
func policy() *Policy {
	return New("system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2", func(label string) (string, error) {
		part := strings.SplitN(label, ":", 4)
		known := map[string]bool{"container_t": true, "container_file_t": true, "spc_t": true, "mine_t": true}
		if len(part) != 4 || !known[part[2]] || !strings.HasPrefix(part[3], "s0") || strings.HasPrefix(part[3], "s0,") {
			return "", unix.EINVAL
		}
		return strings.Replace(label, "c9,c3", "c3,c9", 1) + "\x00", nil
	})
}

func TestPod(t *testing.T) {
	for _, test := range []struct {
		name           string
		o              Options
		host           bool
		process, mount string // LEVEL stands for a pair of categories
	}{
		{"nothing asked", Options{}, false, "system_u:system_r:container_t:LEVEL", "system_u:object_r:container_file_t:LEVEL"},
		{"host namespaces", Options{}, true, "", ""},
		{"host namespaces and options", Options{Type: "mine_t"}, true, "system_u:system_r:mine_t:LEVEL", "system_u:object_r:container_file_t:LEVEL"},
		{"level", Options{Level: "s0:c5,c7"}, false, "system_u:system_r:container_t:s0:c5,c7", "system_u:object_r:container_file_t:s0:c5,c7"},
		{"level in another order", Options{Level: "s0:c9,c3"}, false, "system_u:system_r:container_t:s0:c3,c9", "system_u:object_r:container_file_t:s0:c3,c9"},
		{"no categories", Options{Level: "s0"}, false, "system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0"},
		{"all", Options{"me_u", "me_r", "spc_t", "s0"}, false, "me_u:me_r:spc_t:s0", "me_u:object_r:container_file_t:s0"},
	} {
		p := policy()
		l, err := p.Pod("pod", test.o, test.host)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		level := p.levels["pod"]
		if l.Process != strings.Replace(test.process, "LEVEL", level, 1) || l.Mount != strings.Replace(test.mount, "LEVEL", level, 1) {
			t.Errorf("%s: %+v with level %q, want %s and %s", test.name, l, level, test.process, test.mount)
		}
	}
	p := policy()
	for _, o := range []Options{{Type: "unknown_t"}, {Level: "s0,c4,c5"}, {Type: "mine_t", Level: "nonsense"}} {
		if l, err := p.Pod("pod", o, false); !errors.Is(err, fault.Invalid) {
			t.Errorf("%+v: %+v, %v; want an invalid request", o, l, err)
		}
	}
	if len(p.levels) != 0 {
		t.Errorf("refused pods keep levels: %v", p.levels)
	}
}

func TestContainer(t *testing.T) {
	pod := Labels{"system_u:system_r:container_t:s0:c5,c7", "system_u:object_r:container_file_t:s0:c5,c7"}
	for _, test := range []struct {
		name       string
		pod        Labels
		o          Options
		privileged bool
		want       Labels
	}{
		{"plain", pod, Options{}, false, pod},
		{"a type of its own", pod, Options{Type: "mine_t"}, false, Labels{"system_u:system_r:mine_t:s0:c5,c7", pod.Mount}},
		{"a level of its own", pod, Options{Level: "s0:c1,c2"}, false,
			Labels{"system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"}},
		{"privileged", pod, Options{}, true, Labels{"", pod.Mount}},
		{"privileged with options", pod, Options{Level: "s0"}, true, Labels{"", "system_u:object_r:container_file_t:s0"}},
		{"in a pod of the host's", Labels{}, Options{}, false, Labels{}},
		{"in a pod of the host's, with options", Labels{}, Options{Type: "mine_t"}, false,
			Labels{"system_u:system_r:mine_t:s0", "system_u:object_r:container_file_t:s0"}},
	} {
		if got, err := policy().Container(test.pod, test.o, test.privileged); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.name, got, err, test.want)
		}
	}
	for _, privileged := range []bool{false, true} {
		if l, err := policy().Container(pod, Options{Level: "s0,c4,c5"}, privileged); !errors.Is(err, fault.Invalid) {
			t.Errorf("a wrong level, privileged %v: %+v, %v; want an invalid request", privileged, l, err)
		}
	}
}

// Two pods with the same level could read each other's files.
func TestLevelsAreUnique(t *testing.T) {
	p := policy()
	seen := map[string]string{}
	for i := range 2000 {
		id := "pod" + string(rune(i))
		l, err := p.Pod(id, Options{}, false)
		if err != nil {
			t.Fatal(err)
		}
		if other := seen[l.Process]; other != "" {
			t.Fatalf("two pods are %s", l.Process)
		}
		seen[l.Process] = id
		again, err := p.Pod(id, Options{}, false)
		if err != nil || again != l {
			t.Fatalf("the same pod is %+v, then %+v, %v", l, again, err)
		}
	}
	// The remaining pairs are those of three categories, and two of them are in use.
	after := policy()
	after.Keep("a", Labels{Process: "u:r:t:s0:c0,c1"})
	if after.levels["a"] != "s0:c0,c1" {
		t.Errorf("levels after a restart: %v", after.levels)
	}
	after.Release("a")
	after.Release("a")
	if len(after.levels) != 0 {
		t.Errorf("levels after their release: %v", after.levels)
	}
}

// A policy without container types, such as Debian's, must not prevent pods from running.
func TestPolicyWithoutContainers(t *testing.T) {
	p := New("", "", policy().canonical)
	if l, err := p.Pod("a", Options{}, false); err != nil || l != (Labels{}) {
		t.Errorf("nothing asked: %+v, %v", l, err)
	}
	if l, err := p.Pod("a", Options{Level: "s0:c1,c2"}, false); !errors.Is(err, fault.Invalid) {
		t.Errorf("half a label: %+v, %v; want an invalid request", l, err)
	}
	if l, err := p.Pod("a", Options{"u", "r", "mine_t", "s0"}, false); err != nil || l != (Labels{Process: "u:r:mine_t:s0"}) {
		t.Errorf("a whole label: %+v, %v", l, err)
	}
	var off *Policy
	if l, err := off.Pod("a", Options{Type: "unknown_t"}, false); err != nil || l != (Labels{}) {
		t.Errorf("SELinux is off: %+v, %v", l, err)
	}
	if l, err := off.Container(Labels{}, Options{Type: "unknown_t"}, false); err != nil || l != (Labels{}) {
		t.Errorf("SELinux is off: %+v, %v", l, err)
	}
}
