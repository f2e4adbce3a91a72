// A catalog that commits and then says it did not, once: what a proxy makes of a request that it sent twice.
// Compiled by Janino in the tests' driver, like lakewarden/tables/iceberg/IcebergBridge.java.
package lakewarden.tests;

import java.util.function.Function;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.BadRequestException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.ForbiddenException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.NotAuthorizedException;
import org.apache.iceberg.exceptions.ServiceUnavailableException;
import org.apache.iceberg.exceptions.UnprocessableEntityException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

public final class LyingOperations implements TableOperations {
  private TableOperations real;
  private int lies = 0;
  private int status = 409;
  private String passed = "";
  private String others = "";
  private long answersAfter = 0L;
  private int readings = 0;
  private TableOperations lateOps;
  private TableMetadata lateBase;
  private TableMetadata late;

  public Table lying(Table table) {
    real = ((HasTableOperations) table).operations();
    return new BaseTable(this, table.name());
  }

  /**
   * Answer the next commits with this HTTP status. `passed` says what becomes of each commit: "first" (it is made before the
   * answer), "never", or on its way while the answer is heard: "late" (made by `arrive`), "read" (made before the second
   * reading of the table) or "tried" (made before the next commit). `others`: what another tool does between a commit that was made and the answer: nothing, "expire" our
   * snapshot behind one of its own, "rewrite" the manifests before that, or "merge" them by the append itself.
   */
  public void reset(int lies, int status, String passed, String others, long answersAfter) {
    this.lies = lies;
    this.status = status;
    this.passed = passed;
    this.others = others;
    this.answersAfter = answersAfter;
    readings = 0;
    late = null;
  }

  public void commit(TableMetadata base, TableMetadata metadata) {
    if (lies == 0) {
      if (passed.equals("tried")) {
        arrive();
      }
      real.commit(base, metadata);
      return;
    }
    lies--;
    if (passed.equals("first")) {
      real.commit(base, metadata);
      if (!others.isEmpty()) {
        expire(metadata.currentSnapshot().snapshotId());
      }
    } else if (!passed.equals("never")) {
      lateOps = real;
      lateBase = base;
      late = metadata;
    }
    try {
      Thread.sleep(answersAfter); // the client's own wait before it repeats a request
    } catch (InterruptedException e) {
      throw new RuntimeException(e);
    }
    throw answer();
  }

  private void expire(long ours) {
    Table table = new BaseTable(real, "others");
    table.refresh();
    if (others.equals("merge")) {
      table.updateProperties().set("commit.manifest.min-count-to-merge", "1").commit();
      table.newAppend().commit();
    } else {
      table.newFastAppend().commit();
    }
    if (others.equals("rewrite")) {
      table.rewriteManifests().clusterBy(new Function() {
        public Object apply(Object file) {
          return "all";
        }
      }).commit();
    }
    table.expireSnapshots().expireSnapshotId(ours).cleanExpiredFiles(false).commit();
  }

  private RuntimeException answer() {
    Object[] none = new Object[0];
    switch (status) {
      case 400:
        return new BadRequestException("answer 400", none);
      case 401:
        return new NotAuthorizedException("answer 401", none);
      case 403:
        return new ForbiddenException("answer 403", none);
      case 404:
        return new NoSuchTableException("answer 404", none);
      case 422:
        return new UnprocessableEntityException("answer 422", none);
      case 503:
        return new ServiceUnavailableException("answer 503", none);
      default:
        return new CommitFailedException(new RuntimeException("answer 409"));
    }
  }

  /** The commit that was on its way is made; whether there was one. */
  public boolean arrive() {
    TableMetadata made = late;
    late = null;
    if (made != null) {
      lateOps.commit(lateBase, made);
    }
    return made != null;
  }

  public TableMetadata current() {
    return real.current();
  }

  public TableMetadata refresh() {
    if (late != null && passed.equals("read") && ++readings == 2) {
      arrive();
    }
    return real.refresh();
  }

  public FileIO io() {
    return real.io();
  }

  public EncryptionManager encryption() {
    return real.encryption();
  }

  public String metadataFileLocation(String name) {
    return real.metadataFileLocation(name);
  }

  public LocationProvider locationProvider() {
    return real.locationProvider();
  }
}
