package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	nodeapi "k8s.io/kubernetes/pkg/apis/node"
	nodevalidation "k8s.io/kubernetes/pkg/apis/node/validation"
)

// resourcePaths has the API paths of kinds.
var resourcePaths = map[string]string{
	"Pod": "/api/v1/namespaces/NAMESPACE/pods/", "ConfigMap": "/api/v1/namespaces/NAMESPACE/configmaps/", "Secret": "/api/v1/namespaces/NAMESPACE/secrets/",
	"PersistentVolumeClaim": "/api/v1/namespaces/NAMESPACE/persistentvolumeclaims/", "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses/",
	"Deployment": "/apis/apps/v1/namespaces/NAMESPACE/deployments/", "DaemonSet": "/apis/apps/v1/namespaces/NAMESPACE/daemonsets/",
	"Job": "/apis/batch/v1/namespaces/NAMESPACE/jobs/",
}

// otherUpdates has updates that an API server rejects and the agent accepts, as "KIND OUTCOME:
// CHANGES", each with the reason. The agent is told the desired state, in files as in its API: if
// an object cannot be changed to it, another object replaces it (docs/agent.md).
var otherUpdates = []struct{ updates, reason string }{
	{`Pod replaced: `, "another pod replaces the pod, for which Kubernetes requires a delete"},
	{`Pod configured: .*activeDeadlineSeconds`, "a deadline can be extended and removed"},
	{`Pod configured: .*terminationGracePeriodSeconds`, "it applies when the pod ends"},
	{`Pod configured: .*tolerations`, "they only matter under memory pressure, when a pod is admitted"},
	{`Pod configured: .*image`, "a pull policy, even the default by the tag, applies to the next pull"},
	{`Pod configured: .*(enableServiceLinks|schedulerName|schedulingGroup)`, "they mean nothing"},
	{`Pod configured: .*resources`, "a resize, for which Kubernetes has a subresource"},
	{`(Deployment|DaemonSet) configured: .*spec\.selector`, "pods belong to their workload by its name, not by labels"},
	{`Job configured: .*spec\.(template|completions|completionMode)`, "the job starts again, or wants more or fewer completions"},
	{`Job unchanged: .*spec\.template\.spec\.(enableServiceLinks|schedulerName|schedulingGroup)`, "they mean nothing: the template stays as it is"},
	{`Job configured: .*spec\.parallelism`, "in Kubernetes that of an indexed job changes only with its completions"},
	{`PersistentVolumeClaim configured: .*spec`, "a claim is a directory, whatever it requests"},
	{`RuntimeClass configured: .*handler`, "it applies to pods that start later"},
	{`Secret configured: .*type`, "the type only determines the required keys"},
}

// The agent accepts the same updates as Kubernetes, and the object keeps its identity: no pod is
// replaced. The agent rejects the same updates, except for otherUpdates. The bases are updated with
// one or two values changed, as in TestSameVerdicts. The agent needs no runtime for that.
func TestSameUpdates(t *testing.T) {
	seed := verdictSeed(t)
	bases := readBases(t)
	for i := range bases {
		if b := &bases[i]; b.tree["immutable"] != nil {
			fixed := base{b.name + " immutable", b.kind, change{[]any{"immutable"}, true}.apply(b.tree).(map[string]any)}
			fixed.tree = change{[]any{"metadata", "name"}, "fixed"}.apply(fixed.tree).(map[string]any)
			bases = append(bases, fixed)
		}
	}
	put := startUnconnected(t)
	for i := range bases {
		if outcome, text := put(&bases[i], mutant{of: &bases[i]}.text(t), "?create=true"); outcome != "created" {
			t.Fatalf("%s: %s %s", bases[i].name, outcome, text)
		}
	}
	explained := newVerdictReasons(t)
	var table []*regexp.Regexp
	for _, line := range otherUpdates {
		table = append(table, regexp.MustCompile("^"+line.updates))
	}
	refused, other := 0, 0
	for _, m := range chosen(t, bases, rand.New(rand.NewPCG(seed, seed))) {
		old, text := mutant{of: m.of}.text(t), m.text(t)
		if !sameObject(m) || len(kubernetesVerdict(text)) > 0 {
			continue // another object, or a case of TestSameVerdicts
		}
		theirs := kubernetesUpdate(t, old, text)
		outcome, said := put(m.of, text, "?dryRun=All")
		at := fmt.Sprintf("%s %s: %s", m.of.kind, outcome, m)
		switch {
		case outcome == "": // rejected
			refused++
			var ours []string
			for line := range strings.Lines(said) {
				ours = append(ours, strings.TrimSpace(line))
			}
			if len(theirs) == 0 && !explained.verdicts(ours, nil) {
				t.Errorf("%s (SEED=%d)\ncrisp: %s\nKubernetes takes it", m, seed, said)
			}
		case len(theirs) == 0 && outcome == "replaced":
			t.Errorf("%s (SEED=%d): replaced, and Kubernetes updates it", m, seed)
		case len(theirs) > 0:
			other++
			if !slices.ContainsFunc(table, func(is *regexp.Regexp) bool { return is.MatchString(at) }) {
				t.Errorf("%s (SEED=%d)\nKubernetes: %s", at, seed, strings.Join(theirs, "\n"))
			}
		}
	}
	t.Logf("%d updates are refused, %d are taken where Kubernetes refuses them (SEED=%d)", refused, other, seed)
	if refused == 0 || other == 0 {
		t.Error("nothing was compared")
	}
}

// sameObject reports whether a change keeps an object's identity, and the fields that only servers
// set.
func sameObject(m mutant) bool {
	for _, c := range m.changes {
		at := c.at()
		if at == "kind" || at == "apiVersion" || strings.HasPrefix(at, "metadata") && !strings.HasPrefix(at, "metadata.labels") && !strings.HasPrefix(at, "metadata.annotations") {
			return false
		}
	}
	return true
}

// kubernetesUpdate returns an API server's errors for an update to a valid object.
func kubernetesUpdate(t *testing.T, old, next []byte) (verdict []string) {
	before, err := runtime.Decode(strictly, old)
	check(t, err)
	after, err := runtime.Decode(strictly, next)
	check(t, err)
	validationOf(before) // sets the defaults of strategies
	validationOf(after)
	for _, o := range []runtime.Object{before, after} {
		m, err := meta.Accessor(o)
		check(t, err)
		m.SetUID("0")
		m.SetResourceVersion("1")
	}
	for _, err := range updateOf(after, before) {
		verdict = append(verdict, err.Error())
	}
	return verdict
}

// updateOf validates an update as the strategy of its resource does.
func updateOf(after, before runtime.Object) field.ErrorList {
	switch o := after.(type) {
	case *core.Pod:
		old := before.(*core.Pod)
		opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&o.Spec, &old.Spec, &o.ObjectMeta, &old.ObjectMeta)
		opts.ResourceIsPod = true
		return validation.ValidatePodUpdate(o, old, opts)
	case *core.ConfigMap:
		return validation.ValidateConfigMapUpdate(o, before.(*core.ConfigMap))
	case *core.Secret:
		return validation.ValidateSecretUpdate(o, before.(*core.Secret))
	case *core.PersistentVolumeClaim:
		old := before.(*core.PersistentVolumeClaim)
		return validation.ValidatePersistentVolumeClaimUpdate(o, old, validation.ValidationOptionsForPersistentVolumeClaim(o, old))
	case *nodeapi.RuntimeClass:
		return nodevalidation.ValidateRuntimeClassUpdate(o, before.(*nodeapi.RuntimeClass))
	case *apps.Deployment:
		old := before.(*apps.Deployment)
		return appsvalidation.ValidateDeploymentUpdate(o, old, podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, &old.Spec.Template))
	case *apps.DaemonSet:
		old := before.(*apps.DaemonSet)
		if o.Spec.TemplateGeneration = old.Spec.TemplateGeneration; !apiequality.Semantic.DeepEqual(o.Spec.Template, old.Spec.Template) {
			o.Spec.TemplateGeneration++
		}
		errs := appsvalidation.ValidateDaemonSetUpdate(o, old, podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, &old.Spec.Template))
		if !apiequality.Semantic.DeepEqual(o.Spec.Selector, old.Spec.Selector) { // in the strategy itself
			errs = append(errs, field.Forbidden(field.NewPath("spec", "selector"), "is immutable"))
		}
		return errs
	case *batch.Job:
		old := before.(*batch.Job)
		return batchvalidation.ValidateJobUpdate(o, old, batchvalidation.JobValidationOptions{
			PodValidationOptions: podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, &old.Spec.Template), RequirePrefixedLabels: true,
		})
	}
	return field.ErrorList{field.InternalError(nil, errors.New("no kind of crisp's"))}
}

// startUnconnected starts an agent without a runtime. The returned function puts an object into it:
// outcome is "" if it was rejected, with the errors in said.
func startUnconnected(t *testing.T) (put func(b *base, text []byte, query string) (outcome, said string)) {
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	check(t, err)
	cmd := exec.Command(program("crisp"), "agent", "--runtime-endpoint", "unix://"+filepath.Join(dir, "none"), "--root", filepath.Join(dir, "root"),
		"--manifests", filepath.Join(dir, "manifests"), "--log-dir", filepath.Join(dir, "logs"), "--node-name", nodeName)
	cmd.Stdout, cmd.Stderr = log, log
	check(t, cmd.Start())
	t.Cleanup(func() {
		check(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
		if data, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s", data)
		}
		log.Close()
	})
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "root", "agent.sock"))
	}}}
	for deadline := time.Now().Add(slowness * 30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if resp, err := client.Get("http://agent/livez"); err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the agent does not answer")
		}
	}
	return func(b *base, text []byte, query string) (outcome, said string) {
		metadata := b.tree["metadata"].(map[string]any)
		namespace, ok := metadata["namespace"].(string)
		if !ok {
			namespace = "default"
		}
		path := strings.Replace(resourcePaths[b.kind], "NAMESPACE", namespace, 1) + metadata["name"].(string)
		req, err := http.NewRequest(http.MethodPut, "http://agent"+path+query, bytes.NewReader(text))
		check(t, err)
		resp, err := client.Do(req)
		check(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check(t, err)
		if resp.StatusCode < 300 {
			return resp.Header.Get("Crisp-Outcome"), ""
		}
		var status metav1.Status
		check(t, json.Unmarshal(body, &status))
		return "", status.Message
	}
}
