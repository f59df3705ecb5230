package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/directory"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage/pkg/configfile"
)

// allow checks img against policy.json(5). Of an image for several platforms, the signature of
// our platform's manifest counts, as in every program that uses the library.
//
// If the policy does not accept the image, the error is a PullError; if a signature could not be
// fetched it is not: that says nothing about the image.
func allow(ctx context.Context, sys *types.SystemContext, img types.UnparsedImage) error {
	policy, err := policyOf(sys)
	if err != nil {
		return fault.Invalid.Errorf("policy: %w", err)
	}
	pc, err := signature.NewPolicyContext(policy)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	defer pc.Destroy()
	ok, err := pc.IsRunningImageAllowed(ctx, img)
	switch {
	case ok && err == nil:
		return nil
	case err == nil:
		err = errors.New("the policy does not allow the image")
	case ctx.Err() != nil, isNetwork(err), statusOf(err) != 0:
		return fmt.Errorf("fetch signatures: %w", err)
	}
	return &PullError{SignatureValidationFailed, err}
}

// policyOf reads the policy. A node without one accepts every image, like a runtime without
// signatures: having a policy is a deliberate choice.
func policyOf(sys *types.SystemContext) (*signature.Policy, error) {
	files := []string{sys.SignaturePolicyPath}
	if sys.SignaturePolicyPath == "" {
		files = searched(configfile.File{Name: "policy", Extension: "json", EnvironmentName: "CONTAINERS_POLICY_JSON", DoNotLoadDropInFiles: true})
	}
	if err := readable(files...); err != nil {
		return nil, err
	}
	policy, err := signature.DefaultPolicy(sys)
	if sys.SignaturePolicyPath == "" && errors.Is(err, configfile.ErrConfigFileNotFound) {
		return &signature.Policy{Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}}, nil
	}
	return policy, err
}

// ofNamespace returns the file of namespace in dir, or "" without one. It fails if the file may
// exist but cannot be accessed: then the namespace must not be treated as if it had none.
func ofNamespace(dir, namespace string) (string, error) {
	if dir == "" || namespace == "" {
		return "", nil
	}
	if err := isFileName(namespace); err != nil {
		return "", err
	}
	path := filepath.Join(dir, namespace+".json")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("file of namespace %s: %w", namespace, err)
	}
	return path, nil
}

// Namespaces returns the namespaces that have their own policy.
func (c *Client) Namespaces() []string {
	files := filesIn(c.now().PolicyDir, "*.json")
	for i, file := range files {
		files[i] = strings.TrimSuffix(filepath.Base(file), ".json")
	}
	return files
}

// isFileName refuses a namespace that would lead out of a directory or that, with the suffix
// appended, is longer than a file name may be (NAME_MAX, 255 bytes).
func isFileName(namespace string) error {
	if namespace != filepath.Base(namespace) || namespace == "." || namespace == ".." || len(namespace) > 180 {
		return fault.Invalid.Errorf("namespace %.200q is not a file name", namespace)
	}
	return nil
}

// MaxSignatures bounds the signatures kept for one manifest of one repository.
const MaxSignatures = 64

// A Proof is a manifest that led to an image, and its signatures in a repository: the input for a
// policy once the image is on the node. Being in the record does not make it trusted; a policy
// verifies it each time.
type Proof struct {
	Repository string `json:",omitempty"` // with the registry; "" in records of earlier releases
	Manifest   []byte
	Signatures [][]byte // as the library's directories keep them
}

// Digest returns the digest of the manifest.
func (p Proof) Digest() digest.Digest { return digest.FromBytes(p.Manifest) }

// prove fetches the signatures of img. There may be none, and a failure to fetch them is not an
// error: the policy of this pull did not require them. A namespace whose policy does is then
// refused the image.
func (r *Source) prove(ctx context.Context, img *image.UnparsedImage) []Proof {
	p := Proof{Repository: r.name}
	err := r.bounded(ctx, func(ctx context.Context) error {
		sigs, err := img.UntrustedSignatures(ctx)
		if err != nil || len(sigs) == 0 {
			return err
		}
		for _, sig := range sigs {
			// The type is internal to the library, its methods are not.
			if blob := signatureBlob(sig); blob != nil && len(p.Signatures) < MaxSignatures {
				p.Signatures = append(p.Signatures, blob)
			}
		}
		p.Manifest, _, err = img.Manifest(ctx)
		return err
	})
	if err != nil {
		r.log.DebugContext(ctx, "signatures were not fetched", "err", err)
		return nil
	}
	if len(p.Signatures) == 0 {
		return nil
	}
	return []Proof{p}
}

// signatureBlob returns a signature in the form of the library's directory transport: simple
// signing as it is, sigstore after its format's name.
func signatureBlob(sig any) []byte {
	switch sig := sig.(type) {
	case interface{ UntrustedSignature() []byte }:
		return sig.UntrustedSignature()
	case interface {
		UntrustedMIMEType() string
		UntrustedPayload() []byte
		UntrustedAnnotations() map[string]string
	}:
		data, err := json.Marshal(struct {
			MIMEType    string            `json:"mimeType"`
			Payload     []byte            `json:"payload"`
			Annotations map[string]string `json:"annotations"`
		}{sig.UntrustedMIMEType(), sig.UntrustedPayload(), sig.UntrustedAnnotations()})
		if err != nil {
			return nil
		}
		return append([]byte("\x00sigstore-json\n"), data...)
	}
	return nil
}

// AllowPresent checks the policy of namespace for an image on the node, under each of names
// until one is allowed; without names, as an image with this id, to which only the policy's
// default can apply. proofs are those that came with it. It uses no network. If no name is
// allowed, the error is the *PullError of the first.
func (c *Client) AllowPresent(ctx context.Context, namespace string, names []string, id string, proofs []Proof) error {
	sys, err := c.system(nil, Caller{Namespace: namespace})
	if err != nil {
		return err
	}
	refs, err := parseAll(names)
	if err != nil {
		return err
	}
	if len(refs) == 0 { // loaded without a name: only the default scope applies
		ref, err := reference.ParseNormalizedNamed("nameless.invalid/image@" + id)
		if err != nil {
			return err
		}
		refs = append(refs, ref)
	}
	var first error
	for _, ref := range refs {
		err := c.allowName(ctx, sys, ref, proofs)
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
	}
	if p, ok := errors.AsType[*PullError](first); ok {
		return &PullError{p.Reason, fmt.Errorf("image %s: %w", refs[0], p.Err)}
	}
	return first
}

// allowName checks the policy for an image under one name. One allowed manifest is enough: they
// all lead to the same files.
func (c *Client) allowName(ctx context.Context, sys *types.SystemContext, name reference.Named, proofs []Proof) (err error) {
	ref, err := docker.NewReference(name)
	if err != nil {
		return fault.Invalid.Errorf("%w", err)
	}
	if len(proofs) == 0 {
		return allow(ctx, sys, unsigned{ref})
	}
	dir, err := os.MkdirTemp(c.staging, "proof-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for i, p := range proofs {
		own := filepath.Join(dir, strconv.Itoa(i)) // signatures of another must not be among them
		if err = os.Mkdir(own, 0o700); err != nil {
			return err
		}
		if err = c.allowProof(ctx, sys, ref, p, own); err == nil {
			break
		}
	}
	return err
}

// allowProof writes p as the library's directory transport expects it, the only one that reads
// signatures of each format from files.
func (c *Client) allowProof(ctx context.Context, sys *types.SystemContext, name types.ImageReference, p Proof, dir string) error {
	d := p.Digest()
	files := map[string][]byte{".manifest.json": p.Manifest}
	for i, sig := range p.Signatures {
		files[".signature-"+strconv.Itoa(i+1)] = sig
	}
	for suffix, data := range files {
		if err := os.WriteFile(filepath.Join(dir, d.Encoded()+suffix), data, 0o600); err != nil {
			return err
		}
	}
	ref, err := directory.NewReference(dir)
	if err != nil {
		return err
	}
	src, err := ref.NewImageSource(ctx, sys)
	if err != nil {
		return err
	}
	defer src.Close()
	return allow(ctx, sys, image.UnparsedInstanceWithReference(image.UnparsedInstance(src, &d), name))
}

// unsigned is an image without signatures, as a policy sees it.
type unsigned struct{ ref types.ImageReference }

// Reference implements types.UnparsedImage.
func (u unsigned) Reference() types.ImageReference { return u.ref }

// Manifest implements types.UnparsedImage. No requirement reads the manifest of an
// image that has no signatures.
func (u unsigned) Manifest(context.Context) ([]byte, string, error) {
	return nil, "", errors.New("no manifest was kept")
}

// Signatures implements types.UnparsedImage.
func (u unsigned) Signatures(context.Context) ([][]byte, error) { return nil, nil }
