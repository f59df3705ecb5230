package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// template completes the pod template of a workload. Its revision is the hash of the manifest
// without defaults, so that an agent with other defaults does not replace the pods.
func (v *validator) template(t *v1.PodTemplateSpec, namespace string, o Options, restart ...v1.RestartPolicy) {
	defer func(above string) { v.under = above }(v.under)
	v.under += "spec.template."
	v.metadata(t, false)
	if t.Namespace != "" && t.Namespace != namespace {
		v.report("metadata.namespace", "%q is not the workload's, %q", t.Namespace, namespace)
	}
	hash := contentHash(encode(t), o.NodeName)
	pod := &v1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	setDefaults(pod, o)
	v.autoUpdate(pod)
	t.Spec = pod.Spec
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[AnnotationHash] = hash
	if t.Spec.ActiveDeadlineSeconds != nil && slices.Contains(restart, v1.RestartPolicyAlways) {
		v.report("spec.activeDeadlineSeconds", "not for pods that are to run for ever")
	}
	v.oneOf("spec.restartPolicy", string(t.Spec.RestartPolicy), texts(restart))
}

func (v *validator) selects(s *metav1.LabelSelector, t *v1.PodTemplateSpec) {
	if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		v.report("spec.selector", "is missing")
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		v.report("spec.selector", "%v", err)
		return
	}
	if !selector.Matches(labels.Set(t.Labels)) {
		v.report("spec.template.metadata.labels", "do not match spec.selector")
	}
}

func completeDeployment(v *validator, d *appsv1.Deployment, o Options) {
	setPointer(&d.Spec.Replicas, 1)
	setDefault(&d.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	v.rollingUpdate(&d.Spec.Strategy)
	v.template(&d.Spec.Template, d.Namespace, o, v1.RestartPolicyAlways)
	v.selects(d.Spec.Selector, &d.Spec.Template)
}

func (v *validator) rollingUpdate(s *appsv1.DeploymentStrategy) {
	const field = "spec.strategy.rollingUpdate"
	if s.RollingUpdate == nil {
		return
	}
	if s.Type == appsv1.RecreateDeploymentStrategyType {
		v.report(field, "needs the type RollingUpdate")
	}
	// portion returns a limit scaled to 100 pods, which leaves a percentage as it is; -1 if the
	// limit is missing or invalid.
	portion := func(name string, limit *intstr.IntOrString) int {
		if limit == nil {
			return -1
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(limit, 100, true)
		if err != nil || n < 0 {
			v.report(field+"."+name, "%q: want a number or a percentage", limit)
			return -1
		}
		return n
	}
	surge, unavailable := portion("maxSurge", s.RollingUpdate.MaxSurge), portion("maxUnavailable", s.RollingUpdate.MaxUnavailable)
	if surge == 0 && unavailable == 0 {
		v.report(field, "no update is possible: maxSurge and maxUnavailable are both 0")
	}
	if u := s.RollingUpdate.MaxUnavailable; unavailable > 100 && u.Type == intstr.String {
		v.report(field+".maxUnavailable", "%q is more than 100%%", u)
	}
}

func completeDaemonSet(v *validator, d *appsv1.DaemonSet, o Options) {
	v.template(&d.Spec.Template, d.Namespace, o, v1.RestartPolicyAlways)
	v.selects(d.Spec.Selector, &d.Spec.Template)
}

func completeJob(v *validator, j *batchv1.Job, o Options) {
	s := &j.Spec
	if s.Parallelism == nil && s.Completions == nil {
		setPointer(&s.Completions, 1)
	}
	setPointer(&s.Parallelism, 1)
	setPointer(&s.CompletionMode, batchv1.NonIndexedCompletion)
	setPointer(&s.BackoffLimit, 6)
	switch indexed := *s.CompletionMode == batchv1.IndexedCompletion; {
	case indexed && s.Completions == nil:
		v.insist("spec.completions", "is missing: completionMode Indexed needs it")
	case indexed && *s.Completions > 0: // it becomes a pod's host name
		last := fmt.Sprintf("%s-%d", j.Name, *s.Completions-1)
		v.valid("metadata.name", last, validation.IsDNS1123Label(last))
	case !indexed: // it becomes a label of its pods
		v.valid("metadata.name", j.Name, validation.IsValidLabelValue(j.Name))
	}
	if s.TTLSecondsAfterFinished != nil && o.Source != SourceAPI {
		v.report("spec.ttlSecondsAfterFinished", "only for a job that was applied: a job of a file stays as long as the file")
	}
	if s.Template.Spec.RestartPolicy == "" {
		v.report("spec.template.spec.restartPolicy", "is missing: a job's is OnFailure or Never")
	}
	v.template(&s.Template, j.Namespace, o, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	s.Selector = JobSelector(j.Name)
}

// JobSelector selects the pods of a Job. Without one, "kubectl exec job/NAME" would take any pod.
func JobSelector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.JobNameLabel: name}}
}

// maxObject is Kubernetes' limit of the data in a ConfigMap or Secret, in bytes.
const maxObject = 1 << 20

func (v *validator) dataKeys(field string, keys []string, size int) {
	for _, key := range keys {
		vital(valid(validation.IsConfigMapKey))(v, field+"["+key+"]", reflect.ValueOf(key))
	}
	if size > maxObject {
		v.insist(field, "%d bytes are more than the %d that are allowed", size, maxObject)
	}
}

func completeConfigMap(v *validator, c *v1.ConfigMap, _ Options) {
	size := 0
	for key, value := range c.Data {
		size += len(value)
		if _, twice := c.BinaryData[key]; twice {
			v.report("binaryData["+key+"]", "is in data too")
		}
	}
	for _, value := range c.BinaryData {
		size += len(value)
	}
	v.dataKeys("data", slices.Sorted(maps.Keys(c.Data)), size)
	v.dataKeys("binaryData", slices.Sorted(maps.Keys(c.BinaryData)), 0)
}

var secretKeys = map[v1.SecretType][]string{
	v1.SecretTypeDockercfg:        {v1.DockerConfigKey},
	v1.SecretTypeDockerConfigJson: {v1.DockerConfigJsonKey},
	v1.SecretTypeSSHAuth:          {v1.SSHAuthPrivateKey},
	v1.SecretTypeTLS:              {v1.TLSCertKey, v1.TLSPrivateKeyKey},
}

func completeSecret(v *validator, s *v1.Secret, _ Options) {
	setDefault(&s.Type, v1.SecretTypeOpaque)
	if s.Data == nil && len(s.StringData) > 0 {
		s.Data = map[string][]byte{}
	}
	for key, value := range s.StringData { // stringData takes precedence, as in an API server
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
	size := 0
	for _, value := range s.Data {
		size += len(value)
	}
	v.dataKeys("data", slices.Sorted(maps.Keys(s.Data)), size)
	if s.Type == v1.SecretTypeServiceAccountToken {
		v.report("type", "%q: there are no service accounts without an API server", s.Type)
	}
	for _, key := range secretKeys[s.Type] {
		if value, ok := s.Data[key]; !ok || s.Type == v1.SecretTypeSSHAuth && len(value) == 0 {
			v.report("data", "a secret of the type %s needs the key %s", s.Type, key)
		} else if s.Type == v1.SecretTypeDockercfg || s.Type == v1.SecretTypeDockerConfigJson {
			if json.Unmarshal(value, &map[string]any{}) != nil { // the error of json would quote the secret
				v.report("data["+key+"]", "is not a JSON object")
			}
		}
	}
	_, user := s.Data[v1.BasicAuthUsernameKey]
	if _, password := s.Data[v1.BasicAuthPasswordKey]; s.Type == v1.SecretTypeBasicAuth && !user && !password {
		v.report("data", "a secret of the type %s needs the key %s or %s", s.Type, v1.BasicAuthUsernameKey, v1.BasicAuthPasswordKey)
	}
}

// completeService warns of what a Service of a cluster does and its name here does not.
func completeService(v *validator, s *v1.Service, _ Options) {
	v.valid("metadata.name", s.Name, validation.IsDNS1123Label(s.Name))
	setDefault(&s.Spec.Type, v1.ServiceTypeClusterIP)
	switch {
	case s.Spec.Type != v1.ServiceTypeClusterIP:
		v.remark("spec.type", string(s.Spec.Type)+" is taken as ClusterIP, a name for the pods: hostPort publishes a port")
	case len(s.Spec.Selector) == 0:
		v.remark("spec.selector", "is missing: the name leads nowhere")
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		setDefault(&p.Protocol, v1.ProtocolTCP)
		if to := p.TargetPort; to.Type == intstr.Int && to.IntVal != 0 && to.IntVal != p.Port {
			v.remark(fmt.Sprintf("spec.ports[%d].targetPort", i), fmt.Sprintf("the name leads to the pods themselves: their port is %d, not %d", to.IntVal, p.Port))
		}
	}
}

func completeRuntimeClass(v *validator, r *nodev1.RuntimeClass, _ Options) {
	if r.Overhead != nil {
		v.amounts("overhead.podFixed", r.Overhead.PodFixed)
	}
	if r.Scheduling != nil {
		v.remark("scheduling", "is ignored: pods are not scheduled, they run on this node")
	}
}
