package test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Containers get what their manifests say, whatever the environment of crispd and the
// agent. These tests are in Go because they compare bytes, and compute with the machine's
// memory; scripts test the rest.
func TestAgentInside(t *testing.T) {
	t.Setenv("CRISP_LEAK", "from the host")
	l := startLab(t)
	oomScores(t, l)
	containersAreExact(t, l)
}

// oomScores: pods' OOM scores, which decide which pod is killed when the machine is out of
// memory.
func oomScores(t *testing.T, l *lab) {
	total, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.ParseInt(regexp.MustCompile(`MemTotal: +(\d+) kB`).FindStringSubmatch(string(total))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	half := kib << 10 / 2
	// Without CAP_SYS_RESOURCE no score can be lower than crispd's own.
	least := int64(-1000)
	if !hasCapability(t, 24) {
		own, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			t.Fatal(err)
		}
		if least, err = strconv.ParseInt(strings.TrimSpace(string(own)), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, resources string
		want            int64
	}{
		{"effort", "{}", 1000},
		{"guaranteed", "{limits: {cpu: 1, memory: 32Mi}}", -997},
		{"half", fmt.Sprintf("{requests: {memory: %d}}", half), 1000 - 1000*half/(kib<<10)},
	}
	for _, test := range tests {
		l.pick(t, test.name).write("  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: " + test.resources + "}]\n")
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := l.pick(t, test.name)
			pod.awaitReady()
			if got, want := strings.TrimSpace(pod.exec("app", "cat", "/proc/1/oom_score_adj")), strconv.FormatInt(max(test.want, least), 10); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if test.want < least {
				t.Skipf("needs CAP_SYS_RESOURCE: instead of %d the score is crispd's own, %d", test.want, least)
			}
		})
	}
	l.clear()
}

// hasCapability reports whether this process, and so the processes that it starts, has a
// capability of capabilities(7).
func hasCapability(t *testing.T, bit int) bool {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	set, err := strconv.ParseUint(regexp.MustCompile(`CapEff:\s+(\w+)`).FindStringSubmatch(string(data))[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set&(1<<bit) != 0
}

// containersAreExact: arguments and environment equal the manifest's, byte for byte, and
// the runtime's records have current times and known images.
func containersAreExact(t *testing.T, l *lab) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := []rune("ab '\"\\$()*?[]{}<>|&;~#!%^`-=\t\nä漢🙂")
	args := []string{"/testbin", "sleep", "for-ever", ""}
	for range 60 {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteRune(letters[random.IntN(len(letters))])
		}
		args = append(args, b.String())
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = strings.ReplaceAll(a, "$", "$$") // or it may be a variable
	}
	list, err := json.Marshal(quoted)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	l.run(t, "exact", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    command: `+string(list)+`
    env: [{name: lower, value: "a b"}, {name: UPPER, value: "x=$(lower)"}, {name: EMPTY}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		if got, want := l.exec("app", "cat", "/proc/1/cmdline"), strings.Join(args, "\x00")+"\x00"; got != want {
			t.Errorf("arguments %q\nwant      %q", got, want)
		}
		env := strings.Split(strings.TrimSuffix(l.exec("app", "cat", "/proc/1/environ"), "\x00"), "\x00")
		slices.Sort(env)
		i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") })
		if i < 0 {
			t.Fatalf("no PATH in %q", env)
		}
		env[i] = "PATH="
		if want := []string{"EMPTY=", "HOME=/", "HOSTNAME=exact", "PATH=", "UPPER=x=a b", "lower=a b"}; !slices.Equal(env, want) {
			t.Errorf("environment %q, want %q", env, want)
		}

		images, err := cri.NewImageServiceClient(l.n.conn).ListImages(t.Context(), &cri.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range l.containers("") {
			if !slices.ContainsFunc(images.Images, func(i *cri.Image) bool { return i.Id == c.ImageId }) {
				t.Errorf("the container is of image %q, there are %v", c.ImageId, images.Images)
			}
			if at := time.Unix(0, c.CreatedAt); at.Before(begun) || at.After(time.Now()) {
				t.Errorf("the container was created at %v", at)
			}
		}
		if at := time.Unix(0, l.sandboxes()[0].CreatedAt); at.Before(begun) || at.After(time.Now()) {
			t.Errorf("the sandbox was created at %v", at)
		}
	})
}
