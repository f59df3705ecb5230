package criruntime

import (
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
