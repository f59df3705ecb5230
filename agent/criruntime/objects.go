package criruntime

import (
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

// Objects are what pods refer to by name. An object that does not exist is an
// error of kind fault.NotFound. The objects are read-only and shared.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
	RuntimeClass(name string) (*nodev1.RuntimeClass, error)
	Claim(namespace, name string) (*v1.PersistentVolumeClaim, error)
}

// none has no objects.
type none struct{}

func (none) ConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	return nil, fault.NotFound.Errorf("there is no config map %s/%s", namespace, name)
}

func (none) Secret(namespace, name string) (*v1.Secret, error) {
	return nil, fault.NotFound.Errorf("there is no secret %s/%s", namespace, name)
}

func (none) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return nil, fault.NotFound.Errorf("there is no runtime class %s", name)
}

func (none) Claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return nil, fault.NotFound.Errorf("there is no claim %s/%s", namespace, name)
}
