package crix

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/keyring"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// ensureImage brings the image of a container here, as its pull policy says. It
// returns the reference to create the container from, and the image.
func (d *Driver) ensureImage(ctx, interrupt context.Context, pod *v1.Pod, c *v1.Container, sandbox *cri.PodSandboxConfig) (string, *cri.Image, error) {
	handler, err := d.handler(pod)
	if err != nil {
		return "", nil, reasoned("ErrImagePull", err)
	}
	spec := &cri.ImageSpec{Image: tagged(c.Image), Annotations: pod.Annotations, RuntimeHandler: handler}
	image, err := d.image(ctx, spec)
	if err != nil {
		return "", nil, err
	}
	switch {
	case c.ImagePullPolicy == v1.PullNever && image == nil:
		text := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
		d.tell(pod, c.Name, "", v1.EventTypeWarning, "ErrImageNeverPull", text)
		return "", nil, reasoned("ErrImageNeverPull", errors.New(text))
	case c.ImagePullPolicy == v1.PullNever, c.ImagePullPolicy == v1.PullIfNotPresent && image != nil:
		d.tell(pod, c.Name, "", v1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.Image))
		return image.Id, image, nil
	}
	ref, err := d.pull(interrupt, pod, c, spec, sandbox)
	if err != nil {
		return "", nil, err
	}
	if image, err = d.image(ctx, &cri.ImageSpec{Image: ref, RuntimeHandler: handler}); err == nil && image == nil {
		err = reasoned("ImageInspectError", fmt.Errorf("image %s vanished after it was pulled", c.Image))
	}
	return ref, image, err
}

// image asks for an image; nil is one that is not there.
func (d *Driver) image(ctx context.Context, spec *cri.ImageSpec) (*cri.Image, error) {
	resp, err := d.images.ImageStatus(ctx, spec, false)
	if err = Fault(err); errors.Is(err, fault.Invalid) {
		return nil, reasoned("InvalidImageName", err)
	} else if err != nil {
		return nil, reasoned("ImageInspectError", err)
	}
	return resp.GetImage(), nil
}

// tagged adds the tag that an image without tag and digest has.
func tagged(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	if strings.ContainsAny(name, ":@") {
		return image
	}
	return image + ":latest"
}

// pull waits for its turn and pulls, with each credential that fits until one is
// taken.
func (d *Driver) pull(ctx context.Context, pod *v1.Pod, c *v1.Container, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig) (string, error) {
	credentials, err := d.credentials(pod, spec.Image)
	if err != nil {
		return "", reasoned("ErrImagePull", err)
	}
	asked := time.Now()
	done, err := d.pulls.wait(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	d.tell(pod, c.Name, "", v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	begun := time.Now()
	ref, err := d.tryPull(ctx, spec, credentials, sandbox)
	switch {
	case err == nil:
		d.tell(pod, c.Name, "", v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting)",
			c.Image, time.Since(begun).Truncate(time.Millisecond), time.Since(asked).Truncate(time.Millisecond)))
		return ref, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	}
	d.tell(pod, c.Name, "", v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.Image, err))
	for _, known := range []error{crierrors.ErrRegistryUnavailable, crierrors.ErrSignatureValidationFailed} {
		if rest, ok := strings.CutPrefix(err.Error(), known.Error()); ok {
			what := "the registry is unavailable"
			if known == crierrors.ErrSignatureValidationFailed {
				what = "the signature validation failed"
			}
			return "", reasoned(known.Error(), fmt.Errorf("image pull failed for %s because %s%s", c.Image, what, rest))
		}
	}
	return "", reasoned("ErrImagePull", err)
}

func (d *Driver) tryPull(ctx context.Context, spec *cri.ImageSpec, credentials []keyring.Credential, sandbox *cri.PodSandboxConfig) (string, error) {
	if len(credentials) == 0 {
		ref, err := d.images.PullImage(ctx, spec, nil, sandbox)
		return ref, Fault(err)
	}
	var errs []error
	for _, c := range credentials {
		ref, err := d.images.PullImage(ctx, spec, &cri.AuthConfig{Username: c.Username, Password: c.Password}, sandbox)
		if err == nil {
			return ref, nil
		}
		errs = append(errs, Fault(err))
	}
	return "", errors.Join(errs...)
}

// credentials are the pod's pull secrets and the node's own. A secret that is
// missing is told of and left out: the pull may succeed without.
func (d *Driver) credentials(pod *v1.Pod, image string) ([]keyring.Credential, error) {
	ring, err := keyring.Load(filepath.Join(d.Root, "config.json"))
	if err != nil {
		return nil, err
	}
	var secrets []*v1.Secret
	var missing []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := d.Objects.Secret(pod.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		secrets = append(secrets, s)
	}
	if len(missing) > 0 {
		d.Events.Event(event.Pod(pod), v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	if ring, err = ring.With(secrets...); err != nil {
		return nil, fmt.Errorf("pod %s: %w", podsync.KeyOf(pod), err)
	}
	return ring.Lookup(image), nil
}
