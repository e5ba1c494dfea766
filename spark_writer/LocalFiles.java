package cutline;

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * This machine's files for Hadoop, without a process for each new one: where its native library is missing, as in
 * Spark's packages, Hadoop starts `chmod` for every file that it creates, which takes longer than to write metadata.
 */
public class LocalFiles extends RawLocalFileSystem {
    /** Let Hadoop's local file system of this process, which it keeps, use this one. */
    public void installIn(LocalFileSystem kept, Configuration configuration) throws Exception {
        initialize(URI.create("file:///"), configuration);
        Field raw = FilterFileSystem.class.getDeclaredField("fs");
        raw.setAccessible(true);
        raw.set(kept, this);
    }

    public void setPermission(Path path, FsPermission permission) throws IOException {
        if (permission.getStickyBit()) {
            super.setPermission(path, permission);
            return;
        }
        String symbols =
                permission.getUserAction().SYMBOL
                        + permission.getGroupAction().SYMBOL
                        + permission.getOtherAction().SYMBOL;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
    }
}
