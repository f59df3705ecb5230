package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// inMemory puts the machine's files into memory: these tests are not about the disk.
func inMemory(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		t.Setenv("TMPDIR", "/dev/shm")
	}
}

// A life has the events of one container that a subscriber received, in order.
type life []*cri.ContainerEventResponse

// watch collects events by container until the given number was deleted, or the stream ends with an
// error, which it returns.
func watch(stream cri.RuntimeService_GetContainerEventsClient, deaths int) (map[string]life, error) {
	lives := make(map[string]life)
	for deaths > 0 {
		ev, err := stream.Recv()
		if err != nil {
			return lives, err
		}
		lives[ev.ContainerId] = append(lives[ev.ContainerId], ev)
		if ev.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT {
			deaths--
		}
	}
	return lives, nil
}

// A subscriber gets every step of every container, once and in order, with a status that is not
// older than the event. One that does not read is disconnected with an error, and does not affect
// the other.
func TestEventsOfTenThousand(t *testing.T) {
	pods, rounds := 50, 200
	if testing.Short() {
		rounds = 8
	}
	inMemory(t)
	n := newNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	stream, err := n.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for !n.server.events.hub.HasSubscribers() { // the subscription has no answer to wait for
		time.Sleep(time.Millisecond)
	}
	lazy, err := n.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var lives map[string]life
	var watched sync.WaitGroup
	watched.Go(func() {
		if lives, err = watch(stream, pods*(rounds+1)); err != nil {
			t.Errorf("events ended: %v", err)
		}
	})
	codes := make([]map[string]int32, pods) // of each pod's containers
	var work sync.WaitGroup
	for p := range pods {
		codes[p] = make(map[string]int32)
		work.Go(func() {
			if err := n.livePod(ctx, fmt.Sprint("p", p), rounds, codes[p]); err != nil {
				t.Error(err)
				cancel()
			}
		})
	}
	work.Wait()
	watched.Wait()
	if t.Failed() {
		return
	}
	for _, pod := range codes {
		for id, code := range pod {
			checkLife(t, id, lives[id], code)
			delete(lives, id)
		}
	}
	if len(lives) != pods {
		t.Errorf("events of %d objects that are no container, want those of %d sandboxes", len(lives), pods)
	}
	if testing.Short() {
		return // too few to fill gRPC's buffers for a reader, and the queue
	}
	seen, err := watch(lazy, pods*(rounds+1))
	wantCode(t, "subscriber that did not read", err, "Unavailable")
	for id, l := range seen {
		for i, ev := range l {
			if ev.ContainerEventType != cri.ContainerEventType(i) && len(l) <= 4 {
				t.Fatalf("container %s: event %d is %v: there is a hole before the end", id, i, ev.ContainerEventType)
			}
		}
	}
}

// livePod runs a pod in which one container after the other runs, ends and is removed, and records
// their exit codes.
func (n *node) livePod(ctx context.Context, name string, rounds int, codes map[string]int32) error {
	run, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod(name)})
	if err != nil {
		return err
	}
	for i := range rounds {
		code := int32(i % 100)
		created, err := n.CreateContainer(ctx, &cri.CreateContainerRequest{
			PodSandboxId: run.PodSandboxId, Config: container(fmt.Sprint("c", i), "exit", fmt.Sprint(code)),
		})
		if err != nil {
			return err
		}
		codes[created.ContainerId] = code
		if _, err := n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
			return err
		}
		c, err := n.runtime.Container(created.ContainerId)
		if err != nil {
			return err
		}
		select {
		case <-c.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, err := n.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: created.ContainerId}); err != nil {
			return err
		}
	}
	if _, err := n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
		return err
	}
	_, err = n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: run.PodSandboxId})
	return err
}

// checkLife fails unless l is a complete life that ended with code.
func checkLife(t *testing.T, id string, l life, code int32) {
	t.Helper()
	if len(l) != 4 {
		t.Fatalf("container %s: %d events, want 4", id, len(l))
	}
	var last int64
	for i, ev := range l {
		// The types are numbered in the order of a life.
		if ev.ContainerEventType != cri.ContainerEventType(i) {
			t.Fatalf("container %s: event %d is %v", id, i, ev.ContainerEventType)
		}
		if ev.CreatedAt < last || ev.CreatedAt == 0 {
			t.Errorf("container %s: event %d is of %d, the one before it of %d", id, i, ev.CreatedAt, last)
		}
		last = ev.CreatedAt
		if ev.PodSandboxStatus.GetState() != cri.PodSandboxState_SANDBOX_READY {
			t.Errorf("container %s: event %d has the sandbox as %v", id, i, ev.PodSandboxStatus)
		}
		for _, st := range ev.ContainersStatuses {
			// CRI's states are numbered in the order of a life, too.
			if least := min(cri.ContainerState(i), cri.ContainerState_CONTAINER_EXITED); st.Id == id && st.State < least {
				t.Errorf("container %s: its status is %v at event %v", id, st.State, ev.ContainerEventType)
			}
			if i == 2 && st.Id == id && st.ExitCode != code {
				t.Errorf("container %s: exit code %d, want %d", id, st.ExitCode, code)
			}
		}
		if i == 2 && len(ev.ContainersStatuses) == 0 {
			t.Errorf("container %s: no statuses at its end", id)
		}
	}
}

// A streamed list has every item once, in non-empty messages, and ends.
func TestStreamFiveThousand(t *testing.T) {
	many := 5000
	if testing.Short() {
		many = 3 * batchItems
	}
	inMemory(t)
	n := newNode(t)
	none, err := n.StreamContainers(t.Context(), &cri.StreamContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := none.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("without containers: %v, %v", m, err)
	}
	sb := n.run(t, pod("a"))
	ids := make([]string, many)
	var work sync.WaitGroup
	for w := range 8 {
		work.Go(func() {
			for i := w; i < many; i += 8 {
				resp, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever(fmt.Sprint("c", i))})
				if err == nil {
					_, err = n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: resp.ContainerId})
				}
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = resp.ContainerId
			}
		})
	}
	work.Wait()
	if t.Failed() {
		return
	}
	containers, err := n.StreamContainers(t.Context(), &cri.StreamContainersRequest{})
	list, messages := collect(t, containers, err, (*cri.StreamContainersResponse).GetContainers)
	eachOnce(t, "containers", ids, list, messages, (*cri.Container).GetId)

	stats, err := n.StreamContainerStats(t.Context(), &cri.StreamContainerStatsRequest{})
	usages, messages := collect(t, stats, err, (*cri.StreamContainerStatsResponse).GetContainerStats)
	eachOnce(t, "statistics", ids, usages, messages, func(st *cri.ContainerStats) string { return st.Attributes.Id })

	filtered, err := n.StreamContainers(t.Context(), &cri.StreamContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: "feed"}})
	if list, messages := collect(t, filtered, err, (*cri.StreamContainersResponse).GetContainers); len(list) != 0 || messages != 0 {
		t.Errorf("of another sandbox: %d containers in %d messages", len(list), messages)
	}
}

// eachOnce fails unless the items are those of ids, in more than one message.
func eachOnce[I any](t *testing.T, what string, ids []string, items []I, messages int, id func(I) string) {
	t.Helper()
	seen := make(map[string]int)
	for _, item := range items {
		seen[id(item)]++
	}
	for _, id := range ids {
		if seen[id] != 1 {
			t.Fatalf("%s: container %s is there %d times", what, id, seen[id])
		}
	}
	if len(items) != len(ids) || messages < len(ids)/batchItems {
		t.Errorf("%s: %d items in %d messages, want %d in at least %d", what, len(items), messages, len(ids), len(ids)/batchItems)
	}
}
