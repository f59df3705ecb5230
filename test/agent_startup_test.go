package test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/apiserver/startup"
)

// startupBatch is the number of pods that start at once.
const startupBatch = 25

// The stages of a pod's start cover at least 98 % of its time, for pods of all kinds. STARTUP_PODS
// is the number of pods (200 for a release), STARTUP_SEED selects them.
func TestStartupsAreAccountedFor(t *testing.T) {
	pods, err := strconv.Atoi(cmp.Or(os.Getenv("STARTUP_PODS"), "12"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("STARTUP_SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	l := startLab(t)
	random := rand.New(rand.NewPCG(seed, 0))
	var covered, all time.Duration
	worst, worstName := 1.0, ""
	for begin := 0; begin < pods; begin += startupBatch {
		var manifest strings.Builder
		n := min(startupBatch, pods-begin)
		for i := range n {
			manifest.WriteString(randomPod(random, fmt.Sprint("p", begin+i)))
		}
		file := filepath.Join(l.manifests, "random.yaml")
		if err := os.WriteFile(file, []byte(manifest.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		var reports []startup.Report
		l.until(func() bool { reports = ready(l); return len(reports) == n }, "the pods are ready")
		for _, r := range reports {
			took, part := r.Ready.Sub(r.Seen), r.Covered(r.Ready)
			all += took
			covered += time.Duration(part * float64(took))
			if part < worst {
				worst, worstName = part, r.Pod.Name
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		l.until(func() bool { return len(l.sandboxes()) == 0 && len(reported(l)) == 0 }, "the pods are gone")
	}
	share := float64(covered) / float64(all)
	t.Logf("%d pods: %.2f %% of %v are accounted for; least of %s, %.2f %%", pods, 100*share, all.Round(time.Millisecond), worstName, 100*worst)
	if share < 0.98 {
		t.Errorf("%.2f %% of the time is accounted for, want 98 %%", 100*share)
	}
}

// reported returns the agent's reports of pod starts.
func reported(l *lab) []startup.Report {
	var list struct{ Items []startup.Report }
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(l.n.dir, "agent", "agent.sock"))
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://agent/crisp/v1/startup")
	if err != nil {
		return nil // the agent does not serve yet
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		l.t.Fatal(err)
	}
	return list.Items
}

// ready returns those of pods that are ready.
func ready(l *lab) []startup.Report {
	var list []startup.Report
	for _, r := range reported(l) {
		if !r.Ready.IsZero() {
			list = append(list, r)
		}
	}
	return list
}

// randomPod returns the manifest of a random pod that becomes ready.
func randomPod(r *rand.Rand, name string) string {
	maybe := func(text string) string {
		if r.IntN(2) == 0 {
			return ""
		}
		return text
	}
	image := "image: " + testImage + ", imagePullPolicy: Never"
	text := "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  terminationGracePeriodSeconds: 1\n  hostNetwork: " + strconv.FormatBool(r.IntN(4) == 0) + "\n"
	var mounts string
	if r.IntN(2) == 0 {
		text += "  volumes: [{name: v, emptyDir: {medium: " + []string{`""`, "Memory"}[r.IntN(2)] + "}}]\n"
		mounts = ", volumeMounts: [{name: v, mountPath: /v}]"
	}
	if init := maybe("  - {name: first, "+image+", args: [exit, \"0\"]"+mounts+"}\n") +
		maybe("  - {name: side, "+image+", args: [sleep, for-ever], restartPolicy: Always"+mounts+"}\n"); init != "" {
		text += "  initContainers:\n" + init
	}
	text += "  containers:\n"
	for i := range 1 + r.IntN(3) {
		text += fmt.Sprintf("  - {name: c%d, %s, args: [sleep, for-ever]%s", i, image, mounts) +
			maybe(", readinessProbe: {exec: {command: [/testbin, exit, \"0\"]}, periodSeconds: 1, timeoutSeconds: 60}") +
			maybe(", startupProbe: {exec: {command: [/testbin, exit, \"0\"]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 60}") +
			maybe(", lifecycle: {postStart: {exec: {command: [/testbin, exit, \"0\"]}}}") + "}\n"
	}
	return text
}
