package nri

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/test/oddfiles"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// recorder is a Runtime that records the calls.
type recorder struct{ evicted []string }

func (*recorder) Snapshot() ([]Pod, []Container)                { return nil, nil }
func (*recorder) Update(_ context.Context, u []Update) []Update { return u }

func (r *recorder) Evict(_ context.Context, id, reason string) error {
	r.evicted = append(r.evicted, id+" "+reason)
	if id == "gone" {
		return errors.New("it is gone")
	}
	return nil
}

// Without plugins nothing is converted, and only the lock's handle is allocated.
func TestNobodyThere(t *testing.T) {
	var none *Plugins
	turn := none.Turn()
	if turn.HasPlugins() {
		t.Error("without NRI there is a listener")
	}
	turn.End()
	if n := testing.AllocsPerRun(100, func() { none.Turn().End() }); n > 0 {
		t.Errorf("%v allocations for a turn without NRI, want none", n)
	}

	p := open(t)
	if n := testing.AllocsPerRun(100, func() {
		turn := p.Turn()
		defer turn.End()
		if turn.HasPlugins() {
			t.Error("without plugins there is one")
		}
	}); n > 1 {
		t.Errorf("%v allocations for a turn without plugins, want at most 1", n)
	}
}

func BenchmarkTurnOfNobody(b *testing.B) {
	p := open(b)
	for b.Loop() {
		turn := p.Turn()
		if turn.HasPlugins() {
			b.Fatal("somebody listens")
		}
		turn.End()
	}
}

func open(t testing.TB) *Plugins {
	dir, err := os.MkdirTemp("", "nri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p, err := New(Options{Socket: filepath.Join(dir, "s"), Log: slog.New(slog.DiscardHandler)}, &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// A plugin whose configuration cannot be read keeps crispd from starting, in the name of the file.
func TestOddConfiguration(t *testing.T) {
	p := open(t)
	p.o.PluginDir, p.o.ConfigDir = t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(p.o.PluginDir, "10-odd"), []byte("#!/bin/false\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"10-odd.conf", "odd.conf"} {
		odd := filepath.Join(p.o.ConfigDir, name)
		oddfiles.Each(t, odd, func(kind string) {
			switch err := p.checkConfigs(); kind {
			case "empty", "link to /dev/null", "garbage", "dangling link": // the plugin judges its content
				if err != nil {
					t.Errorf("%s at %s: %v", kind, name, err)
				}
			default:
				if err := p.Start(); err == nil || !strings.Contains(err.Error(), odd) {
					t.Errorf("%s at %s: %v", kind, name, err)
				}
			}
		})
	}
}

// A socket that another process serves is not replaced.
func TestSocketInUse(t *testing.T) {
	first := open(t)
	second, err := New(first.o, &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	second.Close()
	if !unixsock.Answers(first.o.Socket) {
		t.Error("the first one's socket is gone")
	}
}

// Evictions come with a request for updates, and are executed after these.
func TestEvictions(t *testing.T) {
	r := &recorder{}
	p := &Plugins{runtime: r}
	sent := &api.UpdateContainersRequest{Evict: []*api.ContainerEviction{{ContainerId: "a", Reason: "no room"}, {ContainerId: "gone"}}}
	method := func(_ context.Context, unmarshal func(any) error) (any, error) {
		var req api.UpdateContainersRequest
		if err := unmarshal(&req); err != nil {
			return nil, err
		}
		if len(r.evicted) > 0 {
			t.Error("evicted before the updates")
		}
		return &api.UpdateContainersResponse{}, nil
	}
	_, err := p.evictions(t.Context(), func(v any) error { proto.Merge(v.(proto.Message), sent); return nil }, nil, method)
	if err == nil || !slices.Equal(r.evicted, []string{"a no room", "gone "}) {
		t.Errorf("evicted %q with error %v, want both and an error for the second", r.evicted, err)
	}
}

// A container with almost nothing in its specification can be shown, and so can
// one whose environment is not UTF-8.
func TestShowLittle(t *testing.T) {
	for _, spec := range []*specs.Spec{nil, {}, {Process: &specs.Process{}, Linux: &specs.Linux{}}} {
		if got := containerOf(Container{ID: "x", Spec: spec}); got.Id != "x" {
			t.Errorf("shown as %v", got)
		}
	}
	c := containerOf(Container{Spec: &specs.Spec{Process: &specs.Process{Env: []string{"A=\xff"}}}})
	if _, err := proto.Marshal(c); err != nil {
		t.Error(err)
	}
	if got := podOf(Pod{ID: "x"}); got.Id != "x" {
		t.Errorf("shown as %v", got)
	}
}

func TestShowPod(t *testing.T) {
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "n", Namespace: "ns", Uid: "u"},
		Labels:   map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/pod1", Overhead: &cri.LinuxContainerResources{MemoryLimitInBytes: 5},
			Resources: &cri.LinuxContainerResources{CpuQuota: 1, CpuPeriod: 2, CpuShares: 3},
		},
	}
	got := podOf(Pod{ID: "id", Config: config, Handler: "h", IPs: []string{"1.2.3.4"}, NetNS: "/ns", Resources: &cri.LinuxContainerResources{CpuShares: 9}})
	want := &api.PodSandbox{
		Id: "id", Name: "n", Namespace: "ns", Uid: "u", Labels: config.Labels, Annotations: config.Annotations, RuntimeHandler: "h", Ips: []string{"1.2.3.4"},
		Linux: &api.LinuxPodSandbox{
			CgroupParent: "/kubepods/pod1",
			PodOverhead:  &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(5)}, Cpu: &api.LinuxCPU{}},
			PodResources: &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{Shares: api.UInt64(9)}},
			Namespaces:   []*api.LinuxNamespace{{Type: "network", Path: "/ns"}},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
}
