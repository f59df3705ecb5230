package image_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
)

// signedOnly returns a policy that requires a signature of s for images below scope, and
// rejects all others.
func signedOnly(t testing.TB, s *imagetest.Signer, scope string) string {
	t.Helper()
	return string(imagetest.MustJSON(t, map[string]any{
		"default": []any{map[string]string{"type": "reject"}},
		"transports": map[string]any{"docker": map[string]any{
			scope: []any{map[string]any{"type": "sigstoreSigned", "keyPath": s.Path}},
		}},
	}))
}

// refused fails the test unless the kubelet takes err for a bad signature.
func refused(t testing.TB, what string, err error) {
	t.Helper()
	pe, ok := errors.AsType[*registry.PullError](err)
	if !ok || pe.Reason != registry.SignatureValidationFailed || !strings.HasPrefix(err.Error(), "SignatureValidationFailed: ") {
		t.Errorf("%s: error is %v, want %s", what, err, registry.SignatureValidationFailed)
	}
}

// A policy of the node accepts what the right key has signed for the requested name, and
// nothing else.
func TestSignature(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	ours, theirs := imagetest.NewSigner(t), imagetest.NewSigner(t)
	for tag, sign := range map[string]func(digest.Digest){
		"signed":   func(d digest.Digest) { reg.Sign(ours, "app", d, reg.Host+"/app:signed") },
		"unsigned": func(digest.Digest) {},
		"stranger": func(d digest.Digest) { reg.Sign(theirs, "app", d, reg.Host+"/app:stranger") },
		"renamed":  func(d digest.Digest) { reg.Sign(ours, "app", d, reg.Host+"/app:other") },
		"replayed": func(d digest.Digest) { reg.Sign(ours, "app", digest.FromString("x"), reg.Host+"/app:replayed") },
	} {
		sign(reg.Push("app", tag, imagetest.Build(t, "gzip", tag)))
	}
	policy := filepath.Join(p.Dir, "strict.json")
	imagetest.WriteFile(t, policy, signedOnly(t, ours, reg.Host))
	p.Trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})
	img := p.Pull(reg.Host + "/app:signed")
	for _, tag := range []string{"unsigned", "stranger", "renamed", "replayed"} {
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:"+tag, registry.Caller{})
		refused(t, tag, err)
	}
	if list := p.Store.List(); len(list) != 1 || list[0].ID != img.ID {
		t.Errorf("the store has %v", list)
	}
	// A missing key of the policy is no reason to accept.
	if err := os.Remove(ours.Path); err != nil {
		t.Fatal(err)
	}
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:signed", registry.Caller{})
	refused(t, "without key", err)
}

// copied returns a registry with an image that is signed and pulled, and with a copy of it as
// "copy:v1", the digest of their manifest, a function that pulls the copy, and one that returns
// whether the namespace "strict" is allowed the image.
func copied(t *testing.T) (reg *imagetest.Registry, top digest.Digest, pull func(), allowed func() error) {
	t.Helper()
	reg = imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	s := imagetest.NewSigner(t)
	p.Trusting(image.Settings{})
	imagetest.WriteFile(t, filepath.Join(p.Dir, "policies", "strict.json"), signedOnly(t, s, reg.Host))
	ref := reg.Host + "/app:v1"
	top = reg.Push("app", "v1", imagetest.Build(t, "gzip", "signed"))
	reg.Sign(s, "app", top, ref)
	img := p.Pull(ref)
	reg.Push("copy", "v1", imagetest.Build(t, "gzip", "signed"))
	return reg, top, func() { p.Pull(reg.Host + "/copy:v1") }, func() error { return p.Store.Allowed(t.Context(), "strict", ref, img.ID) }
}

// Whoever pushes a copy of a signed image to a repository of theirs, with any number of signatures,
// does not displace those of the image's own.
func TestSignaturesOfACopy(t *testing.T) {
	reg, top, pull, allowed := copied(t)
	stranger := imagetest.NewSigner(t)
	for range registry.MaxSignatures {
		reg.Sign(stranger, "copy", top, reg.Host+"/copy:v1")
		pull()
	}
	if err := allowed(); err != nil {
		t.Error(err)
	}
}

// The same if these cannot even be parsed.
func TestBrokenSignaturesOfACopy(t *testing.T) {
	reg, top, pull, allowed := copied(t)
	served := false
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Registry-Supports-Signatures", "1")
		if !strings.HasPrefix(r.URL.Path, "/extensions/v2/copy/signatures/") {
			return strings.HasPrefix(r.URL.Path, "/extensions/")
		}
		served = true
		var list []string
		for i := range 3 {
			list = append(list, fmt.Sprintf(`{"schemaVersion":2,"name":"%s@%032x","type":"atomic","content":"eA=="}`, top, i))
		}
		fmt.Fprintf(w, `{"signatures":[%s]}`, strings.Join(list, ","))
		return true
	})
	pull()
	if err := allowed(); err != nil || !served {
		t.Errorf("error is %v, the registry was asked for signatures: %t", err, served)
	}
}

// An image that one namespace has pulled is not available to another with a stricter
// policy, with or without a pull; a signed one is, also after a restart and without the
// registry.
func TestNamespacePolicy(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	s := imagetest.NewSigner(t)
	p.Trusting(image.Settings{})
	imagetest.WriteFile(t, filepath.Join(p.Dir, "policies", "strict.json"), signedOnly(t, s, reg.Host))
	strict := registry.Caller{Namespace: "strict"}

	signed, plain := reg.Host+"/app:signed", reg.Host+"/app:plain"
	top := reg.Push("app", "signed", imagetest.Build(t, "gzip", "signed"))
	reg.Sign(s, "app", top, signed)
	bare := reg.Push("app", "plain", imagetest.Build(t, "gzip", "plain"))
	a, b := p.Pull(signed), p.Pull(plain)

	allowed := func(want bool, namespace, name, id string) {
		t.Helper()
		err := p.Store.Allowed(t.Context(), namespace, name, id)
		if want && err != nil {
			t.Errorf("in %q %s is not allowed: %v", namespace, name, err)
		}
		if !want {
			refused(t, namespace+" "+name, err)
		}
	}
	check := func() {
		t.Helper()
		allowed(true, "lax", plain, b.ID)
		allowed(true, "", "", b.ID)
		allowed(false, "strict", plain, b.ID)
		allowed(false, "strict", "", b.ID)
		allowed(true, "strict", signed, a.ID)
		allowed(true, "strict", "", a.ID)
		allowed(true, "strict", a.ID, a.ID)
		allowed(true, "strict", strings.TrimPrefix(a.ID, "sha256:"), a.ID)
		allowed(true, "strict", reg.Host+"/app@"+top.String(), a.ID)
		allowed(false, "strict", reg.Host+"/app:other", a.ID) // signed for another name
	}
	check()
	if _, err := p.Store.Pull(t.Context(), plain, strict); err == nil {
		t.Error("the strict namespace has pulled an unsigned image")
	} else {
		refused(t, "pull by tag", err)
	}
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app@"+bare.String(), strict)
	refused(t, "pull by digest", err)
	for range 2 { // the second time the registry is not asked
		reg.Asked("")
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/app@"+top.String(), strict); err != nil {
			t.Error(err)
		}
	}
	if got := reg.Asked(""); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}

	p.Trusting(image.Settings{})
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "closed", http.StatusInternalServerError)
		return true
	})
	check()
	reg.Intercept(nil)

	// The image is signed after its pull: the next pull notices, without another download.
	reg.Sign(s, "app", bare, plain)
	if _, err := p.Store.Pull(t.Context(), plain, strict); err != nil {
		t.Fatal(err)
	}
	allowed(true, "strict", plain, b.ID)

	// The same manifest in another repository, signed for that name, changes nothing here.
	reg.Push("copy", "v1", imagetest.Build(t, "gzip", "signed"))
	reg.Sign(imagetest.NewSigner(t), "copy", top, reg.Host+"/copy:v1")
	if img := p.Pull(reg.Host + "/copy:v1"); img.ID != a.ID {
		t.Errorf("image is %s, want %s", img.ID, a.ID)
	}
	allowed(true, "strict", signed, a.ID)
	allowed(false, "strict", reg.Host+"/copy:v1", a.ID)

	if _, err := p.Store.Pull(t.Context(), plain, registry.Caller{Namespace: "../strict"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
	imagetest.WriteFile(t, filepath.Join(p.Dir, "policies", "broken.json"), "{")
	if _, err := p.Store.Pull(t.Context(), plain, registry.Caller{Namespace: "broken"}); err == nil {
		t.Error("a broken policy accepts")
	}
}

// A keyless signature has a certificate of Fulcio for an address, valid for some minutes, and
// Rekor's proof that it was made within them. Both are stored with the signature, so that no log or
// authority has to be contacted.
func TestKeylessSignature(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	ca, rekor := imagetest.NewSigner(t), imagetest.NewSigner(t)
	then := time.Now().Add(-24 * time.Hour)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: then.Add(-time.Hour), NotAfter: then.Add(48 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootPEM := certificate(t, root, root, &ca.Key.PublicKey, ca.Key)
	imagetest.WriteFile(t, filepath.Join(p.Dir, "fulcio.pem"), rootPEM)
	policy := filepath.Join(p.Dir, "keyless.json")
	imagetest.WriteFile(t, policy, fmt.Sprintf(`{"default":[{"type":"sigstoreSigned","rekorPublicKeyPath":%q,
		"fulcio":{"caPath":%q,"oidcIssuer":"https://accounts.example","subjectEmail":"dev@example.com"}}]}`, rekor.Path, filepath.Join(p.Dir, "fulcio.pem")))
	p.Trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})

	sign := func(tag, email string, log *ecdsa.PrivateKey) {
		key := imagetest.NewSigner(t).Key
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: then, NotAfter: then.Add(10 * time.Minute), EmailAddresses: []string{email},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte("https://accounts.example")}}}
		leafPEM := certificate(t, leaf, root, &key.PublicKey, ca.Key)
		top := reg.Push("app", tag, imagetest.Build(t, "gzip", tag))
		reg.SignWith(key, "app", top, reg.Host+"/app:"+tag, func(payload, sig []byte) map[string]string {
			sum := sha256.Sum256(payload)
			body := imagetest.MustJSON(t, map[string]any{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": map[string]any{
				"data":      map[string]any{"hash": map[string]string{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])}},
				"signature": map[string]any{"content": sig, "publicKey": map[string]any{"content": []byte(leafPEM)}}}})
			entry := imagetest.MustJSON(t, map[string]any{"body": body, "integratedTime": then.Add(time.Minute).Unix(), "logID": "log", "logIndex": 1}) // canonical: the keys are sorted
			sum = sha256.Sum256(entry)
			stamp, err := ecdsa.SignASN1(rand.Reader, log, sum[:])
			if err != nil {
				t.Fatal(err)
			}
			return map[string]string{
				"dev.sigstore.cosign/certificate": leafPEM,
				"dev.sigstore.cosign/bundle":      string(imagetest.MustJSON(t, map[string]any{"SignedEntryTimestamp": stamp, "Payload": json.RawMessage(entry)})),
			}
		})
	}
	sign("good", "dev@example.com", rekor.Key)
	sign("stranger", "mallory@example.com", rekor.Key)
	sign("unlogged", "dev@example.com", imagetest.NewSigner(t).Key)
	img := p.Pull(reg.Host + "/app:good")
	for _, tag := range []string{"stranger", "unlogged"} {
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:"+tag, registry.Caller{})
		refused(t, tag, err)
	}
	if err := p.Store.Allowed(t.Context(), "", reg.Host+"/app:good", img.ID); err != nil {
		t.Errorf("the signature was not kept whole: %v", err)
	}
}

func certificate(t testing.TB, c, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// A registry that fails while signatures are fetched is not taken for a bad signature.
func TestSignaturesOutOfReach(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	s := imagetest.NewSigner(t)
	policy := filepath.Join(p.Dir, "strict.json")
	imagetest.WriteFile(t, policy, signedOnly(t, s, reg.Host))
	p.Trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "x"))
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ".sig") {
			http.Error(w, "later", http.StatusInternalServerError)
			return true
		}
		return false
	})
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
	if pe, ok := errors.AsType[*registry.PullError](err); !ok || pe.Reason != registry.RegistryUnavailable {
		t.Errorf("error is %v, want %s", err, registry.RegistryUnavailable)
	}
}

// Pinning follows the settings while the store is open.
func TestReconfigurePinned(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("team/app", "v1", imagetest.Build(t, "gzip", "x"))
	img := p.Pull(reg.Host + "/team/app:v1")
	for pattern, want := range map[string]bool{
		reg.Host + "/team/app:v1": true,
		reg.Host + "/team/*":      true,
		"*app*":                   true,
		"*tea*":                   true,
		"team/app":                false,
		"app":                     false,
		"":                        false,
	} {
		p.Store.Reconfigure(image.Settings{Pinned: []string{pattern}})
		got, err := p.Store.Get(img.ID)
		if err != nil || got.Pinned != want {
			t.Errorf("with %q it is pinned: %v, want %v (err %v)", pattern, got.Pinned, want, err)
		}
	}
	p.Reopen(image.Options{})
}

// Simple signing has GPG signatures in a directory or on a web server beside the registry.
func TestSimpleSigning(t *testing.T) {
	gpg, err := exec.LookPath("gpg")
	if err != nil {
		t.Skip("needs gpg to make signatures")
	}
	home := t.TempDir()
	run := func(stdin string, args ...string) []byte {
		t.Helper()
		cmd := exec.Command(gpg, append([]string{"--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("gpg %v: %v\n%s", args, err, &stderr)
		}
		return out
	}
	t.Cleanup(func() { exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	for _, algorithm := range []string{"rsa2048", "ed25519"} {
		t.Run(algorithm, func(t *testing.T) {
			user := algorithm + "@crisp.test"
			run("", "--quick-generate-key", user, algorithm, "sign", "never")
			reg := imagetest.NewRegistry(t)
			p := imagetest.NewPlace(t, reg)
			key, policy := filepath.Join(p.Dir, "key.gpg"), filepath.Join(p.Dir, "strict.json")
			imagetest.WriteFile(t, key, string(run("", "--export", user)))
			imagetest.WriteFile(t, policy, fmt.Sprintf(`{"default":[{"type":"signedBy","keyType":"GPGKeys","keyPath":%q}]}`, key))
			p.Trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})
			imagetest.WriteFile(t, filepath.Join(p.Dir, "registries.d", "all.yaml"), "default-docker:\n  lookaside: file://"+p.Dir+"/lookaside\n")

			top := reg.Push("app", "v1", imagetest.Build(t, "gzip", "x"))
			reg.Push("app", "v2", imagetest.Build(t, "gzip", "y"))
			claim := fmt.Sprintf(`{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":%q},"identity":{"docker-reference":%q}},"optional":{"creator":"test","timestamp":1700000000}}`, top, reg.Host+"/app:v1")
			imagetest.WriteFile(t, filepath.Join(p.Dir, "lookaside", "app@"+strings.Replace(top.String(), ":", "=", 1), "signature-1"), string(run(claim, "--local-user", user, "--sign")))
			img := p.Pull(reg.Host + "/app:v1")
			_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v2", registry.Caller{})
			refused(t, "unsigned", err)
			if err := p.Store.Allowed(t.Context(), "", reg.Host+"/app:v1", img.ID); err != nil {
				t.Errorf("the signature was not kept: %v", err)
			}
		})
	}
}
