package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// Flags that docker's users type, and the part of the pod that results.
func TestRunFlags(t *testing.T) {
	n := newNode(t)
	t.Setenv("HERE", "there")
	env := filepath.Join(n.dir, "env")
	if err := os.WriteFile(env, []byte("# a comment\nA=file\n\nB=two words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"x sh -c echo":               "containers: [{name: main, image: x, args: [sh, -c, echo]}]\nrestartPolicy: Always",
		"-it --rm x -- sh -x":        "containers: [{name: main, image: x, args: [sh, -x], stdin: true, stdinOnce: true, tty: true}]\nrestartPolicy: Never",
		"x grep -- -v":               "containers: [{name: main, image: x, args: [grep, --, -v]}]\nrestartPolicy: Always",
		"x find / -name y":           "containers: [{name: main, image: x, args: [find, /, -name, 'y']}]\nrestartPolicy: Always",
		"-d --restart no x":          "containers: [{name: main, image: x}]\nrestartPolicy: Never",
		"--restart unless-stopped x": "containers: [{name: main, image: x}]\nrestartPolicy: Always",
		"--restart on-failure x":     "containers: [{name: main, image: x}]\nrestartPolicy: OnFailure",
		"--pull missing x":           "containers: [{name: main, image: x, imagePullPolicy: IfNotPresent}]\nrestartPolicy: Always",
		"-e HERE -e NOT_HERE -e A=1 --env-file " + env + " x": "containers: [{name: main, image: x, env: [{name: B, value: two words}, {name: HERE, value: there}, {name: A, value: '1'}]}]\nrestartPolicy: Always",
		"-e A=$(HOME) x":                      "containers: [{name: main, image: x, env: [{name: A, value: $$(HOME)}]}]\nrestartPolicy: Always",
		"-e A=$x$$y -e B=$$$(C) x":            "containers: [{name: main, image: x, env: [{name: A, value: $$x$$$$y}, {name: B, value: $$$$$$(C)}]}]\nrestartPolicy: Always",
		"x sh -c echo,$$,$(NAME)":             "containers: [{name: main, image: x, args: [sh, -c, 'echo,$$$$,$(NAME)']}]\nrestartPolicy: Always",
		"-m 512m --cpus 1.5 x":                "containers: [{name: main, image: x, resources: {limits: {memory: 512Mi, cpu: 1500m}}}]\nrestartPolicy: Always",
		"--memory 1g x":                       "containers: [{name: main, image: x, resources: {limits: {memory: 1Gi}}}]\nrestartPolicy: Always",
		"--memory 64Mi x":                     "containers: [{name: main, image: x, resources: {limits: {memory: 64Mi}}}]\nrestartPolicy: Always",
		"-u 1000:100 -w /src --group-add 7 x": "containers: [{name: main, image: x, workingDir: /src, securityContext: {runAsUser: 1000, runAsGroup: 100}}]\nrestartPolicy: Always\nsecurityContext: {supplementalGroups: [7]}",
		"-u 1:2 -u 3 --shm-size 1m --shm-size= --net host --net bridge x": "containers: [{name: main, image: x, securityContext: {runAsUser: 3}}]\nrestartPolicy: Always",
		"--network host --net bridge --runtime b --runtime-class a x":     "containers: [{name: main, image: x}]\nrestartPolicy: Always\nruntimeClassName: a",
		"--network mine --net host --runtime-class a --runtime b x":       "containers: [{name: main, image: x}]\nhostNetwork: true\nrestartPolicy: Always\nruntimeClassName: b",
		"--privileged --privileged=false --read-only=false x":             "containers: [{name: main, image: x}]\nrestartPolicy: Always",
		"--entrypoint /bin/sh x -c true":                                  "containers: [{name: main, image: x, command: [/bin/sh], args: [-c, 'true']}]\nrestartPolicy: Always",
		"-v /h:/c:ro,z -v data:/d -v /e x": "containers: [{name: main, image: x, volumeMounts: [{name: v0, mountPath: /c, readOnly: true}, {name: v1, mountPath: /d}, {name: v2, mountPath: /e}]}]\nrestartPolicy: Always\n" +
			"volumes: [{name: v0, hostPath: {path: /h}}, {name: v1, persistentVolumeClaim: {claimName: data}}, {name: v2, emptyDir: {}}]",
		"--mount type=bind,src=/h,dst=/c,ro --mount type=tmpfs,target=/t,tmpfs-size=1m x": "containers: [{name: main, image: x, volumeMounts: [{name: v0, mountPath: /c, readOnly: true}, {name: v1, mountPath: /t}]}]\nrestartPolicy: Always\n" +
			"volumes: [{name: v0, hostPath: {path: /h}}, {name: v1, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]",
		"--tmpfs /run:rw,size=64k --shm-size 1m x": "containers: [{name: main, image: x, volumeMounts: [{name: v0, mountPath: /run}, {name: v1, mountPath: /dev/shm}]}]\nrestartPolicy: Always\n" +
			"volumes: [{name: v0, emptyDir: {medium: Memory, sizeLimit: 64Ki}}, {name: v1, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]",
		"--network host --pid host --ipc host x": "containers: [{name: main, image: x}]\nrestartPolicy: Always\nhostNetwork: true\nhostPID: true\nhostIPC: true",
		"--cap-add CAP_NET_ADMIN --cap-drop all --read-only --security-opt no-new-privileges --security-opt seccomp=unconfined x": "containers: [{name: main, image: x, securityContext: {capabilities: {add: [NET_ADMIN], drop: [ALL]}, readOnlyRootFilesystem: true, " +
			"allowPrivilegeEscalation: false, seccompProfile: {type: Unconfined}}}]\nrestartPolicy: Always",
		"--privileged x": "containers: [{name: main, image: x, securityContext: {privileged: true}}]\nrestartPolicy: Always",
		"--device /dev/fuse --device /dev/a:/dev/b:r --device amd.com/gpu=0 --gpus all x": "containers: [{name: main, image: x, resources: {limits: {crisp.io/device=/dev/fuse: 1, 'crisp.io/device=/dev/a:/dev/b:r': 1, amd.com/gpu=0: 1, nvidia.com/gpu=all: 1}}}]\nrestartPolicy: Always\n",
		"--gpus 2 x": "containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]\nrestartPolicy: Always\n",
		"--hostname h --add-host db:192.0.2.1 --dns 192.0.2.53 --sysctl net.core.somaxconn=9 x": "containers: [{name: main, image: x}]\nrestartPolicy: Always\nhostname: h\ndnsPolicy: None\ndnsConfig: {nameservers: [192.0.2.53]}\n" +
			"hostAliases: [{ip: 192.0.2.1, hostnames: [db]}]\nsecurityContext: {sysctls: [{name: net.core.somaxconn, value: '9'}]}",
		"--stop-signal int --stop-timeout 3 --health-cmd true x": "containers: [{name: main, image: x, lifecycle: {stopSignal: SIGINT}, readinessProbe: {exec: {command: [/bin/sh, -c, 'true']}, periodSeconds: 30}}]\n" +
			"restartPolicy: Always\nos: {name: linux}\nterminationGracePeriodSeconds: 3",
	} {
		out, errs, code := n.crisp("run --dry-run client --name t " + line)
		var got v1.Pod
		if code != 0 || yaml.Unmarshal([]byte(out), &got) != nil {
			t.Errorf("%s: code %d, %s", line, code, errs)
			continue
		}
		var spec v1.PodSpec
		if err := yaml.Unmarshal([]byte(want), &spec); err != nil {
			t.Fatal(err)
		}
		text := func(s v1.PodSpec) string {
			data, err := yaml.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		if got := text(got.Spec); got != text(spec) {
			t.Errorf("%s:\n%swant\n%s", line, got, text(spec))
		}
	}
}

// Both names of the label flag can be combined.
func TestRunLabels(t *testing.T) {
	n := newNode(t)
	out, errs, code := n.crisp("run --dry-run client --name t -l a=1 --label b=2 --labels c=3 --label d=4 x")
	var got v1.Pod
	if code != 0 || yaml.Unmarshal([]byte(out), &got) != nil {
		t.Fatalf("code %d, %s", code, errs)
	}
	if want := map[string]string{"run": "t", "a": "1", "b": "2", "c": "3", "d": "4"}; !maps.Equal(got.Labels, want) {
		t.Errorf("labels %v, want %v", got.Labels, want)
	}
}

// Flags that a pod does not support are rejected by name, before any request to the agent.
func TestRunRefuses(t *testing.T) {
	n := newNode(t)
	for line, want := range map[string]string{
		"-d --rm x":                      "-d leaves nobody",
		"-p 80 x":                        "want [IP:]HOST:CONTAINER",
		"--restart on-failure:3 x":       "pods count no restarts",
		"--memory lots x":                `"lots" is no size`,
		"--memory -1 x":                  `"-1" is no size`,
		"--cpus many x":                  "want a number such as 1.5",
		"--user nobody x":                "a pod has no user by name",
		"--network mine x":               "want host",
		"-v a:b:c:d x":                   "want HOST:CONTAINER",
		"-v /a:/b:shared x":              "option shared",
		"-v data:rel x":                  "want HOST:CONTAINER",
		"-l novalue x":                   "want KEY=VALUE",
		"--mount type=bind,target=/c x":  "want type=bind with a path",
		"--mount target=rel x":           "want an absolute path",
		"--mount wrong=1 x":              "wrong is not known",
		"--security-opt label=disable x": "want no-new-privileges",
		"--gpus 0 x":                     "want all or a number",
		"--add-host db x":                "want NAME:IP",
		"--frobnicate x":                 "unknown flag",
	} {
		_, errs, code := n.crisp("run --dry-run client " + line)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %s", line, code, errs)
		}
	}
}

// A RuntimeClass that is missing is created if the runtime has a handler of its name. One that the
// node could never run is an error at once.
func TestRunOfHandler(t *testing.T) {
	n := newNode(t)
	n.away()
	n.serve(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		resp, err := handle(ctx, req)
		if s, ok := resp.(*cri.StatusResponse); ok && err == nil {
			s.RuntimeHandlers = []*cri.RuntimeHandler{{Name: ""}, {Name: "gvisor"}, {Name: "other"}}
		}
		return resp, err
	})
	n.agent()
	n.until("get nodes -o jsonpath={.items[0].status.runtimeHandlers[*].name}", `gvisor other`)
	n.file("class.yaml", "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fast}, handler: other}")
	n.expect(
		expectation{"apply -f " + filepath.Join(n.dir, "class.yaml"), 0, `created`},
		expectation{"run --dry-run client --runtime gvisor x", 0, `runtimeClassName: gvisor`},
		expectation{"get runtimeclasses -o name", 0, `^runtimeclass[^/]*/fast\n$`},
		expectation{"run --name a --runtime gvisor example.org/x:1", 0, `^pod/a created\n$`},
		expectation{"get runtimeclass gvisor -o jsonpath={.handler}", 0, `^gvisor$`},
		expectation{"run --name b --runtime-class gvisor example.org/x:1", 0, `^pod/b created\n$`},
		expectation{"run --name c --runtime fast example.org/x:1", 0, `^pod/c created\n$`},
		expectation{"get runtimeclass fast -o jsonpath={.handler}", 0, `^other$`},
		expectation{"run --name d --runtime kata example.org/x:1", 3, `no RuntimeClass kata, and the runtime has no handler of that name; it has \["gvisor" "other"\]`},
		expectation{"get pod d", 3, `d`},
	)
	n.until("get pods", `a +1/1 +Running`)
	n.expect(expectation{"delete pod/a pod/b pod/c --force", 0, `deleted`})
}
