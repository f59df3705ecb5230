package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The debug log has each call for a new pod, in order and with the pod's name.
func TestCallsAreLogged(t *testing.T) {
	n := newNode(t)
	var log journal
	ended := make(chan int)
	go func() {
		args := []string{"--runtime-endpoint", n.socket, "agent", "--manifests", filepath.Join(n.dir, "manifests"), "--root", filepath.Join(n.dir, "agent"), "--v", "4"}
		ended <- run(t.Context(), append(args, anyDisk...), nil, &log, &log)
	}()
	t.Cleanup(func() { <-ended }) // the test's context has ended by then
	n.manifest("web.yaml", webPod)
	n.until("get pods", `web +2/2 `)
	var asked []string
	for line := range strings.Lines(log.String()) {
		var l struct{ Msg, Operation, Pod string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "runtime asked" && l.Pod == "default/web" && regexp.MustCompile("^(run|create|start)_").MatchString(l.Operation) {
			asked = append(asked, l.Operation)
		}
	}
	want := []string{"run_podsandbox", "create_container", "start_container", "create_container", "start_container"}
	if !slices.Equal(asked, want) {
		t.Errorf("logged %q, want %q\n%s", asked, want, log.String())
	}
}

// An edited pod is another pod of the same name: it starts when the old one has ended completely,
// however long that takes.
func TestEditedPodWaits(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.manifest("web.yaml", webPod)
	n.agent()
	n.until("get pods", `web +2/2 `)
	stopping, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.onCall(func(call string) {
		if call == "StopContainer app" {
			once.Do(func() { close(stopping) })
			<-release
		}
	})
	n.forget()
	n.manifest("web.yaml", strings.Replace(webPod, "name: app", "name: other", 1))
	<-stopping
	n.until("get pods", `web +\d/2 +Terminating .*\nweb +0/2 +PredecessorTerminating `)
	if early := n.made("RunPodSandbox", "CreateContainer"); len(early) > 0 {
		t.Errorf("while the old pod ends: %q", early)
	}
	close(release)
	n.until("get pods", `web +2/2 +Running`)
	made := n.made("StopContainer", "StopPodSandbox", "RemovePodSandbox", "RunPodSandbox", "CreateContainer")
	if i := slices.Index(made, "RunPodSandbox web"); i < 0 || !slices.Contains(made[:i], "StopContainer app") || !slices.Contains(made[:i], "StopPodSandbox web") ||
		slices.Contains(made[:i], "CreateContainer other") || !slices.Contains(made[i:], "CreateContainer other") {
		t.Errorf("the order is %q", made)
	}
}

// A pod whose manifest returns while it ends, ends and then starts again. It has not failed,
// whatever its restart policy. The next agent does the same.
func TestManifestPutBack(t *testing.T) {
	inRealTime(t)
	once := strings.Replace(webPod, "spec:", "spec:\n  restartPolicy: Never", 1)
	for name, change := range map[string]func(n *calls, stop func()){
		"removed": func(n *calls, _ func()) {
			n.manifest("web.yaml", "")
			n.until("get pods", `web +\d/2 +Terminating`)
			n.manifest("web.yaml", once)
		},
		"edited": func(n *calls, _ func()) {
			n.manifest("web.yaml", strings.Replace(once, "name: app", "name: other", 1))
			n.until("get pod web -o yaml", `name: other`)
			n.manifest("web.yaml", once)
		},
		"removed, and the agent killed": func(n *calls, stop func()) {
			n.manifest("web.yaml", "")
			n.until("get pods", `web +\d/2 +Terminating`)
			stop()
			n.manifest("web.yaml", once)
			n.agent()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newCalls(t)
			n.begin()
			n.manifest("web.yaml", once)
			stop := n.agent()
			n.until("get pods", `web +2/2 `)
			release := make(chan struct{})
			n.onCall(func(call string) {
				if call == "StopContainer app" {
					<-release
				}
			})
			n.forget()
			change(n, stop)
			n.await("half of it has ended", func() bool { return slices.Contains(n.made("Stop"), "StopContainer side") })
			n.until("get pods", `^NAME.*\nweb +0/2 +(Pending|PredecessorTerminating) +0 .*\n$`)
			if early := n.made("RunPodSandbox", "CreateContainer", "StartContainer"); len(early) > 0 {
				t.Errorf("while the old pod ends: %q", early)
			}
			close(release)
			n.until("get pods", `web +2/2 +Running +0 `)
			if made := n.made("RunPodSandbox", "CreateContainer"); !slices.Equal(made, []string{"RunPodSandbox web", "CreateContainer app", "CreateContainer side"}) {
				t.Errorf("it began anew with %q", made)
			}
			if marks, err := filepath.Glob(filepath.Join(n.dir, "agent/pods/*/ending")); err != nil || len(marks) > 0 {
				t.Errorf("pods still end: %v, %v", marks, err)
			}
		})
	}
}

// A pull that never ends does not block a deletion.
func TestDeletedWhilePulling(t *testing.T) {
	n := newCalls(t)
	n.begin()
	pulling, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.onCall(func(call string) {
		if strings.HasPrefix(call, "PullImage") {
			once.Do(func() { close(pulling) })
			<-release
		}
	})
	t.Cleanup(func() { close(release) }) // before the server stops
	n.manifest("web.yaml", webPod)
	n.agent()
	<-pulling
	n.manifest("web.yaml", "")
	n.until("get pods -o name", `^$`)
	if made := n.made("CreateContainer"); len(made) > 0 {
		t.Errorf("it was given %q", made)
	}
	n.await("the sandbox is gone", func() bool { return slices.Contains(n.made("Remove"), "RemovePodSandbox web") })
}

// Fifty pods start concurrently: each RunPodSandbox blocks here until all were called.
func TestPodsBeginTogether(t *testing.T) {
	inRealTime(t)
	const pods = 50
	n := newCalls(t)
	n.begin()
	var all sync.WaitGroup
	all.Add(pods)
	n.onCall(func(call string) {
		if strings.HasPrefix(call, "RunPodSandbox") {
			all.Done()
			all.Wait()
		}
	})
	for i := range pods {
		n.manifest(fmt.Sprintf("p%d.yaml", i), fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d}, spec: {containers: [{name: a, image: i}]}}", i))
	}
	n.agent()
	n.await("all run", func() bool { return len(n.made("StartContainer")) == pods })
}

// The agent pulls at most its limit of images at a time, and events report which; other pulls wait
// for their turn.
func TestPullsTakeTurns(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.flags = []string{"--max-parallel-image-pulls", "2"}
	var mu sync.Mutex
	busy, most := 0, 0
	turns := make(chan struct{})
	n.onCall(func(call string) {
		if !strings.HasPrefix(call, "PullImage") {
			return
		}
		mu.Lock()
		busy++
		most = max(most, busy)
		mu.Unlock()
		<-turns
		mu.Lock()
		busy--
		mu.Unlock()
	})
	for i := range 4 {
		n.manifest(fmt.Sprintf("p%d.yaml", i), fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d}, spec: {containers: [{name: a, image: \"i%d:1\"}]}}", i, i))
	}
	n.agent()
	events := func(reason string) int {
		out, _, _ := n.crisp("events")
		return len(regexp.MustCompile(`(?m)^\S+ +Normal +`+reason+` +pod/p\d`).FindAllString(out, -1))
	}
	n.await("four sandboxes run", func() bool { return len(n.made("RunPodSandbox")) == 4 })
	n.await("two are pulled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return busy == 2
	})
	n.await("the events tell of both", func() bool { return events("Pulling") == 2 })
	for done := range 4 {
		if pulling := events("Pulling") - events("Pulled"); pulling > 2 {
			t.Errorf("after %d the events tell of %d at a time", done, pulling)
		}
		turns <- struct{}{}
		n.await("one is there", func() bool { return events("Pulled") == done+1 })
	}
	n.until("get pods", `(?s)p0 +1/1 .*p1 +1/1 .*p2 +1/1 .*p3 +1/1 `)
	mu.Lock()
	defer mu.Unlock()
	if most != 2 {
		t.Errorf("%d at a time, want 2", most)
	}
}

// An agent that stops its pods stops those of the lowest priority first, and the next class when
// they have ended.
func TestStopsByPriority(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.flags = []string{"--stop-pods-on-exit"}
	for name, priority := range map[string]string{"vital": "priorityClassName: system-node-critical", "usual": "priority: 0", "low": "priority: -5", "high": "priority: 7"} {
		n.manifest(name+".yaml", fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {%s, containers: [{name: of-%s, image: i}]}}", name, priority, name))
	}
	stop := n.agent()
	n.until("get pods", `(?s)high +1/1 .*low +1/1 .*usual +1/1 .*vital +1/1 `)
	n.forget()
	stop()
	want := []string{"StopContainer of-low", "StopPodSandbox low", "StopContainer of-usual", "StopPodSandbox usual",
		"StopContainer of-high", "StopPodSandbox high", "StopContainer of-vital", "StopPodSandbox vital"}
	if made := n.made("Stop", "Remove"); !slices.Equal(made, want) {
		t.Errorf("the order is %q\nwant %q", made, want)
	}
}

// Pods that an agent stopped when it ended are started by the next agent, except for one that is
// never restarted: its program was ended, and another run would be a restart.
func TestStartsAgainWhatItStopped(t *testing.T) {
	n := newCalls(t)
	n.begin()
	n.flags = []string{"--stop-pods-on-exit"}
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		n.manifest(policy+".yaml", fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p-%s}, spec: {restartPolicy: %s, containers: [{name: a, image: i}]}}", strings.ToLower(policy), policy))
	}
	stop := n.agent()
	n.until("get pods", `(?s)p-always +1/1 .*p-never +1/1 .*p-onfailure +1/1 `)
	n.onCall(func(call string) { // as a program that is ended by a signal
		if strings.HasPrefix(call, "StopContainer ") {
			n.exit(143)
		}
	})
	stop()
	n.flags = nil
	n.onCall(nil)
	n.forget()
	n.agent()
	// Until the next agent has seen a pod, it shows the status that the last one saved.
	n.until("get pods", `(?s)p-always +1/1 +Running +1 .*p-never +0/1 +Error.*p-onfailure +1/1 +Running +1 `)
	if out, _, _ := n.crisp("get pod p-never -o yaml"); !strings.Contains(out, "phase: Failed") {
		t.Errorf("a pod that is never restarted:\n%s", out)
	}
	if made := n.made("StartContainer"); len(made) != 2 {
		t.Errorf("the next agent started %q", made)
	}
	// What cannot be done for one pod holds up no other.
	if out, errs, code := n.crisp("restart p-never p-always"); code != exitNotFound || out != "p-always/a restarted\n" || !strings.Contains(errs, "p-never") {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
}

// Pods are stopped when the machine is shut down, and not when the agent is only restarted, as by an
// upgrade.
func TestStopsAtShutdown(t *testing.T) {
	n := newCalls(t)
	n.begin()
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	state := func(word string) {
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n[ \"$*\" = is-system-running ] && echo "+word+"\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, word := range []string{"degraded", "stopping"} {
		state(word)
		n.manifest(word+".yaml", strings.Replace(webPod, "name: web}", "name: "+word+"}", 1))
		stop := n.agent()
		n.until("get pods", word+` +2/2 +Running +0 `)
		stop()
		if stopped := len(n.made("StopContainer")) > 0; stopped != (word == "stopping") {
			t.Errorf("%s: %q", word, n.made("Stop"))
		}
	}
}
