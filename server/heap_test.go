package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testheap"
)

// perPod bounds what crispd's heap keeps for a running pod with one container, as a kubelet asks for it.
// It includes what the fake machine and the client of the test keep.
const perPod = 60 << 10

// A node has hundreds of pods: what each of them adds to the heap must not grow unnoticed.
func TestHeapPerPod(t *testing.T) {
	inMemory(t)
	n := newNode(t)
	const first, more = 30, 200
	begin := func(from, to int) {
		var work sync.WaitGroup
		for w := range 4 {
			work.Go(func() {
				for i := from + w; i < to && !t.Failed(); i += 4 {
					if err := n.beginAsKubelet(t, fmt.Sprint("p", i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
	}
	begin(0, first) // what there is once
	testheap.Live() // what pools keep is gone with the second collection
	without := testheap.Live()
	begin(first, first+more)
	if t.Failed() {
		return
	}
	testheap.Live()
	with := testheap.Live()
	kept := with - min(with, without) // a test before this one may have kept more until now
	t.Logf("%d bytes a pod", kept/more)
	testheap.Bound{PerByte: perPod}.Check(t, "bytes kept for pods", kept, more)
}

// beginAsKubelet runs a pod with the labels, environment and mounts of an ordinary Deployment.
func (n *node) beginAsKubelet(t testing.TB, name string) error {
	config := pod(name)
	config.LogDirectory = "/var/log/pods/default_" + name
	for i := range 8 {
		config.Annotations[fmt.Sprint("example.com/annotation-", i)] = strings.Repeat(name, 10)
	}
	run, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	c := forever("c-" + name)
	c.LogPath = "c/0.log"
	for i := range 30 { // a service has seven
		c.Envs = append(c.Envs, &cri.KeyValue{Key: fmt.Sprint("SERVICE_", i, "_PORT"), Value: []byte("tcp://10.96.0.1:443/" + name)})
	}
	for i := range 4 {
		c.Mounts = append(c.Mounts, &cri.Mount{ContainerPath: fmt.Sprint("/volume/", i), HostPath: t.TempDir()})
	}
	created, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: run.PodSandboxId, Config: c, SandboxConfig: config})
	if err != nil {
		return err
	}
	_, err = n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: created.ContainerId})
	return err
}
