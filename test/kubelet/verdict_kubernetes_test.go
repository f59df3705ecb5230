package kubelet

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	nodeapi "k8s.io/kubernetes/pkg/apis/node"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	nodevalidation "k8s.io/kubernetes/pkg/apis/node/validation"
	"k8s.io/kubernetes/pkg/capabilities"
)

var strictly = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()

func init() { capabilities.Setup(true, 0) } // as with --allow-privileged, which the kubelet always sets

// kubernetesVerdict returns an API server's errors for a new object, as "FIELD: TEXT". It decodes
// strictly, as kubectl requests, sets defaults and validates.
func kubernetesVerdict(text []byte) (verdict []string) {
	defer func() {
		if p := recover(); p != nil {
			verdict = []string{fmt.Sprintf(": it panics: %v", p)}
		}
	}()
	object, err := runtime.Decode(strictly, text)
	if err != nil {
		return []string{": " + err.Error()}
	}
	for _, err := range validationOf(object) {
		verdict = append(verdict, err.Error())
	}
	return verdict
}

// validationOf validates an object as the strategy of its resource does, after it has set what the
// API server sets first.
func validationOf(object runtime.Object) field.ErrorList {
	switch o := object.(type) {
	case *core.Pod:
		defaultNamespace(&o.Namespace)
		podutil.DropDisabledPodFields(o, nil)
		opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&o.Spec, nil, &o.ObjectMeta, nil)
		opts.ResourceIsPod = true
		return validation.ValidatePodCreate(o, opts)
	case *core.ConfigMap:
		defaultNamespace(&o.Namespace)
		return validation.ValidateConfigMap(o)
	case *core.Secret:
		defaultNamespace(&o.Namespace)
		return validation.ValidateSecret(o)
	case *core.PersistentVolumeClaim:
		defaultNamespace(&o.Namespace)
		return validation.ValidatePersistentVolumeClaim(o, validation.ValidationOptionsForPersistentVolumeClaim(o, nil))
	case *nodeapi.RuntimeClass:
		return nodevalidation.ValidateRuntimeClass(o)
	case *apps.Deployment:
		defaultNamespace(&o.Namespace)
		podutil.DropDisabledTemplateFields(&o.Spec.Template, nil)
		return appsvalidation.ValidateDeployment(o, podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil))
	case *apps.DaemonSet:
		defaultNamespace(&o.Namespace)
		podutil.DropDisabledTemplateFields(&o.Spec.Template, nil)
		return appsvalidation.ValidateDaemonSet(o, podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil))
	case *batch.Job:
		defaultNamespace(&o.Namespace)
		generateSelector(o)
		podutil.DropDisabledTemplateFields(&o.Spec.Template, nil)
		return batchvalidation.ValidateJob(o, batchvalidation.JobValidationOptions{
			PodValidationOptions: podutil.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil), RequirePrefixedLabels: true,
		})
	}
	return field.ErrorList{field.Invalid(field.NewPath("kind"), fmt.Sprintf("%T", object), "is none of crisp's")}
}

func defaultNamespace(namespace *string) {
	if *namespace == "" {
		*namespace = core.NamespaceDefault
	}
}

// generateSelector sets the labels by which a Job's pods are selected.
func generateSelector(j *batch.Job) {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return
	}
	j.UID = "0"
	labels := map[string]string{batch.LegacyJobNameLabel: j.Name, batch.JobNameLabel: j.Name,
		batch.LegacyControllerUidLabel: string(j.UID), batch.ControllerUidLabel: string(j.UID)}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for key, value := range labels {
		if _, given := j.Spec.Template.Labels[key]; !given {
			j.Spec.Template.Labels[key] = value
		}
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, given := j.Spec.Selector.MatchLabels[batch.ControllerUidLabel]; !given {
		j.Spec.Selector.MatchLabels[batch.ControllerUidLabel] = string(j.UID)
	}
}
