/* Linked with a static CUDA runtime: its first call resolves the whole driver. */
int cudaFree(void *pointer);

int main(void) {
    cudaFree(0);
    return 0;
}
