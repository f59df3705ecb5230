package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// failures has the specs of pods that fail, by the names of the rows of docs/failures.md. IMAGE is an
// image that is there, REGISTRY a registry of this test.
var failures = map[string]string{
	"exits":         `{containers: [{name: app, image: IMAGE, args: [print, "panic: cannot open /etc/app.conf", exit, "3"]}]}`,
	"memory":        `{containers: [{name: app, image: IMAGE, args: [eat, "256"], resources: {limits: {memory: 16Mi}}}]}`,
	"no-program":    `{containers: [{name: app, image: IMAGE, command: [/no/such/program]}]}`,
	"no-permission": `{containers: [{name: app, image: IMAGE, command: [/proc/version]}]}`,
	"never":         `{restartPolicy: Never, containers: [{name: app, image: IMAGE, args: [print, no licence, exit, "1"]}]}`,
	"no-image":      `{containers: [{name: app, image: "REGISTRY/no/such:1"}]}`,
	"no-registry":   `{containers: [{name: app, image: "127.0.0.1:1/app:1"}]}`,
	"never-pulled":  `{containers: [{name: app, image: "REGISTRY/not/here:1", imagePullPolicy: Never}]}`,
	"bad-name":      `{containers: [{name: app, image: "BAD/Name"}]}`,
	"config-map":    `{containers: [{name: app, image: IMAGE, envFrom: [{configMapRef: {name: settings}}]}]}`,
	"key":           `{containers: [{name: app, image: IMAGE, env: [{name: A, valueFrom: {secretKeyRef: {name: token, key: password}}}]}]}`,
	"volume":        `{containers: [{name: app, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, secret: {secretName: none}}]}`,
	"host-path":     `{containers: [{name: app, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, hostPath: {path: /no/such/path, type: Directory}}]}`,
	"claim":         `{containers: [{name: app, image: IMAGE, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}`,
	"root":          `{securityContext: {runAsNonRoot: true}, containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]}`,
	"too-big":       `{containers: [{name: app, image: IMAGE, resources: {requests: {cpu: 1000}}}]}`,
	"sysctl":        `{securityContext: {sysctls: [{name: net.core.somaxconn, value: "4096"}]}, containers: [{name: app, image: IMAGE}]}`,
	"class":         `{runtimeClassName: none, containers: [{name: app, image: IMAGE}]}`,
	"deadline":      `{activeDeadlineSeconds: 1, containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]}`,
	"readiness":     `{containers: [{name: app, image: IMAGE, args: [sleep, for-ever], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}]}`,
	"startup":       `{containers: [{name: app, image: IMAGE, args: [sleep, for-ever], startupProbe: {exec: {command: [/testbin, exit, "4"]}, periodSeconds: 1, failureThreshold: 1000}}]}`,
	"init":          `{initContainers: [{name: wait-db, image: IMAGE, args: [sleep, for-ever]}], containers: [{name: app, image: IMAGE}]}`,
}

// What changes from run to run: times, addresses, IDs.
var varying = regexp.MustCompile(`\b[0-9a-f]{12,64}\b|\d+(\.\d+)*( (ms|s|m|h)\b)?`)

// docs/failures.md has what "crisp why" says of each way to fail: it says just that.
func TestFailures(t *testing.T) {
	l := startCgroupLab(t)
	if err := l.n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	l.n.expects(`.`) // pulls fail
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
	var all strings.Builder
	all.WriteString("apiVersion: v1\nkind: Secret\nmetadata: {name: token}\n")
	for name, spec := range failures {
		spec = strings.NewReplacer("IMAGE", `"`+testImage+`", imagePullPolicy: Never`, "REGISTRY", l.n.registry.host()).Replace(spec)
		all.WriteString("---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: " + strings.Replace(spec, "{", "{terminationGracePeriodSeconds: 1, ", 1) + "\n")
	}
	f := l.agentProcess.file("failures.yaml", all.String())
	l.says(0, "", "apply", "-f", f)
	doc := string(read(t, "../docs/failures.md"))
	rows := regexp.MustCompile("(?m)^    \\$ crisp why (\\S+)\n((?:    .*\n)+)").FindAllStringSubmatch(doc, -1)
	if len(rows) != len(failures) {
		t.Errorf("%d ways in the document, %d in the test", len(rows), len(failures))
	}
	host := l.n.registry.host()
	plain := func(text string) string {
		text = strings.ReplaceAll(strings.ReplaceAll(text, host, "REGISTRY"), "registry.example", "REGISTRY")
		return varying.ReplaceAllString(strings.Join(strings.Fields(text), " "), "N")
	}
	for _, row := range rows {
		t.Run(row[1], func(t *testing.T) {
			want, last := plain(row[2]), ""
			for end := time.Now().Add(time.Minute); time.Now().Before(end) && plain(last) != want; time.Sleep(100 * time.Millisecond) {
				last, _ = l.agentProcess.crisp("", "why", row[1])
			}
			if plain(last) != want {
				t.Errorf("crisp why %s says\n%swhich is\n%s\nwant\n%s", row[1], last, plain(last), want)
			}
		})
	}
	if out := os.Getenv("FAILURES_OUT"); out != "" { // what it says now, for the document
		var b strings.Builder
		for name := range failures {
			text, _ := l.agentProcess.crisp("", "why", name)
			b.WriteString(name + "\t" + text)
		}
		if err := os.WriteFile(filepath.Clean(out), []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l.says(0, "", "delete", "-f", f, "--grace-period", "0")
}
